"""`elastic_node.elastic`, and torch's state and sampler, under Horovod's names."""

from ..elastic import *  # noqa: F403: porting from Horovod is changing one import
from ..elastic import __all__ as _of_package
from ._sampler import ElasticDistributedSampler
from ._state import TorchState

__all__ = [*_of_package, "ElasticDistributedSampler", "TorchState"]
