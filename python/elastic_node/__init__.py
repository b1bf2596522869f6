"""Elastic Node: distributed training that goes on while machines come and go.

::

    import elastic_node as en

    en.init()
    state = en.elastic.ObjectState(weights=numpy.zeros(10), step=0)

    @en.elastic.run
    def train(state):
        while state.step < 1000:
            gradient = en.allreduce(compute_gradient(state.weights))
            state.weights -= 0.1 * gradient
            state.step += 1
            state.commit()

    train(state)

Start it with ``elastic-node run -n 4 -- train.py``; by itself it is a world of one. `elastic_node.torch` has what
PyTorch adds. The names are Horovod's, so that porting is changing the import.
"""

from ._context import is_initialized
from ._exchanges import (
    allgather,
    allgather_async,
    alltoall,
    alltoall_async,
    barrier,
    broadcast,
    broadcast_,
    broadcast_async,
    broadcast_async_,
)
from ._handle import Handle, poll, synchronize
from ._native import CollectiveError, ElasticError
from ._objects import allgather_object, broadcast_object
from ._process_sets import ProcessSet, add_process_set, global_process_set, remove_process_set
from ._reductions import (
    Average,
    Max,
    Min,
    Product,
    Sum,
    allreduce,
    allreduce_,
    allreduce_async,
    allreduce_async_,
    grouped_allreduce,
    grouped_allreduce_,
    grouped_allreduce_async,
    grouped_allreduce_async_,
    reducescatter,
    reducescatter_async,
)
from . import _context, elastic


def init() -> None:
    """Attaches this process to the driver that started it; without one it is a world of one. Calling it again
    does nothing.

    Blocks until the driver has answered. Call it on the thread that trains: all else is called there, too.

    Raises:
        ElasticError: the driver cannot be reached, or refuses this process.
    """
    _context.init()


def shutdown() -> None:
    """Leaves the job, once all ranks have come here. Within `elastic.run`, which leaves by itself, it does nothing.

    Raises:
        ElasticError: the job failed.
    """
    _context.shutdown()


def rank() -> int:
    """This worker's number, from 0. It may change from one generation to the next.

    Before the first generation, the number with which the process was started; `elastic.run` and the first
    collective begin one.

    Raises:
        ValueError: `init` was not called; so for all that follow.
    """
    return _context.place()[0]


def size() -> int:
    """How many workers take part."""
    return _context.place()[1]


def local_rank() -> int:
    """This worker's number among those of its host."""
    return _context.place()[2]


def local_size() -> int:
    """How many workers its host has."""
    return _context.place()[3]


def cross_rank() -> int:
    """The number of its host among those that have a worker with this local rank."""
    return _context.place()[4]


def cross_size() -> int:
    """How many hosts have a worker with this local rank."""
    return _context.place()[5]


def generation() -> int:
    """Which generation this is: 0 without a driver, and before the first. It only grows."""
    return _context.session().generation or 0


def note(text: str) -> None:
    """Shows a short text, such as the loss, beside this worker in `elastic-node status`; 256 bytes at most."""
    _context.session().note(text)


__all__ = [
    "Average",
    "CollectiveError",
    "ElasticError",
    "Handle",
    "Max",
    "Min",
    "ProcessSet",
    "Product",
    "Sum",
    "add_process_set",
    "allgather",
    "allgather_async",
    "allgather_object",
    "allreduce",
    "allreduce_",
    "allreduce_async",
    "allreduce_async_",
    "alltoall",
    "alltoall_async",
    "barrier",
    "broadcast",
    "broadcast_",
    "broadcast_async",
    "broadcast_async_",
    "broadcast_object",
    "cross_rank",
    "cross_size",
    "elastic",
    "generation",
    "global_process_set",
    "grouped_allreduce",
    "grouped_allreduce_",
    "grouped_allreduce_async",
    "grouped_allreduce_async_",
    "init",
    "is_initialized",
    "local_rank",
    "local_size",
    "note",
    "poll",
    "rank",
    "reducescatter",
    "reducescatter_async",
    "remove_process_set",
    "shutdown",
    "size",
    "synchronize",
]
