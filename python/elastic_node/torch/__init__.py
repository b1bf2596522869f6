"""Elastic Node for PyTorch: all of `elastic_node`, and what torch adds.

- `TorchState` holds modules, optimisers, schedulers, scalers, generators and samplers as one unit.
- `DistributedOptimizer` averages gradients while the backward pass goes on; with ``shards=…``, over logical shards.
- `register_shard_hook` does so for DistributedDataParallel.
- ``torch.distributed.init_process_group("elastic")`` puts DDP, FSDP2 and everything else of torch.distributed on our
  collectives. Before torch 2.14, importing this package makes the name known; later it is found by itself.
- `init_process_group` does the same within `elastic.run`, for the generation.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    # Of two definitions mypy takes the first; Python takes the last, below.
    from . import elastic
from .. import *  # type: ignore[no-redef]  # `elastic`, as above.  # noqa: F403: porting from Horovod is changing one import
import elastic_node as _package
import elastic_node.torch.elastic as elastic  # Replaces the `elastic` of `*`.
from ._backend import init_process_group, register
from ._broadcasting import broadcast_optimizer_state, broadcast_parameters
from ._data_waits import measure_data_loaders
from ._ddp_shards import ShardHook, register_shard_hook
from ._optimizer import DistributedOptimizer
from ._sampler import ElasticDistributedSampler
from ._sparse import sparse_allreduce_async
from ._state import TorchState
from ._sync_batch_norm import SyncBatchNorm

register()
measure_data_loaders()

__all__ = [
    "DistributedOptimizer",
    "ElasticDistributedSampler",
    "ShardHook",
    "SyncBatchNorm",
    "TorchState",
    "broadcast_optimizer_state",
    "broadcast_parameters",
    "init_process_group",
    "register_shard_hook",
    "sparse_allreduce_async",
]
__all__ += _package.__all__
