"""`elastic_node.elastic`, and torch's state and sampler, under Horovod's names."""

from ..elastic import *  # noqa: F403: porting from Horovod is changing one import
from .. import elastic as _elastic
from ._sampler import ElasticDistributedSampler
from ._state import TorchState

__all__ = ["ElasticDistributedSampler", "TorchState"]
__all__ += _elastic.__all__
