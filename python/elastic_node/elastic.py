"""Elastic training in process: the run loop, the state that survives, the sampler. With Horovod's names. Programs use
it."""

from ._native import CollectiveError, HostsUpdatedInterrupt
from ._object_state import ObjectState
from ._run import run
from ._sampler import Batch, ElasticSampler
from ._shards import DataShard, ShardedSampler, ShardedStep
from ._state import State

__all__ = [
    "Batch",
    "CollectiveError",
    "DataShard",
    "ElasticSampler",
    "HostsUpdatedInterrupt",
    "ObjectState",
    "ShardedSampler",
    "ShardedStep",
    "State",
    "run",
]
