"""Elastic Node for PyTorch: all of `elastic_node`, and what torch adds.

- `TorchState` holds modules, optimisers, schedulers, scalers, generators and samplers as one unit.
- `DistributedOptimizer` averages gradients while the backward pass goes on.
- ``torch.distributed.init_process_group("elastic")`` puts DDP, FSDP2 and everything else of torch.distributed on our
  collectives. Before torch 2.14, importing this package makes the name known; later it is found by itself.
- `init_process_group` does the same within `elastic.run`, for the generation.
"""

from .. import *  # noqa: F403: porting from Horovod is changing one import
from .. import __all__ as _of_package
import elastic_node.torch.elastic as elastic  # Not the one that `*` brought.
from ._backend import init_process_group, register
from ._optimizer import DistributedOptimizer, broadcast_optimizer_state, broadcast_parameters
from ._sampler import ElasticDistributedSampler
from ._state import TorchState

register()

__all__ = [
    *_of_package,
    "DistributedOptimizer",
    "ElasticDistributedSampler",
    "TorchState",
    "broadcast_optimizer_state",
    "broadcast_parameters",
    "init_process_group",
]
