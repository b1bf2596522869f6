"""`elastic_node.elastic`, and torch's state and sampler, under Horovod's names."""

import elastic_node.elastic  # By this name: pyright does not follow another one into `__all__`.

from ..elastic import *  # noqa: F403: porting from Horovod is changing one import
from ._sampler import ElasticDistributedSampler
from ._state import TorchState

__all__ = ["ElasticDistributedSampler", "TorchState"]
__all__ += elastic_node.elastic.__all__
