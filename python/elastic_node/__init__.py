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

from contextlib import contextmanager as _contextmanager
from importlib.metadata import version as _version_of

from typing import Iterator, Optional, Sequence, SupportsFloat

from ._builds import (
    ccl_built,
    cuda_built,
    ddl_built,
    gloo_built,
    gloo_enabled,
    is_homogeneous,
    mpi_built,
    mpi_enabled,
    mpi_threads_supported,
    nccl_built,
    rocm_built,
)
from ._compression import Compression
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
    grouped_allgather,
    grouped_allgather_async,
    join,
)
from ._handle import Handle, poll, synchronize
from ._native import CollectiveError, ElasticError, HostsUpdatedInterrupt
from ._objects import allgather_object, broadcast_object
from ._process_sets import ProcessSet, add_process_set, global_process_set, remove_process_set
from ._reduce_op import Adasum, Average, Max, Min, Product, ReduceOp, Sum
from ._reductions import (
    allreduce,
    allreduce_,
    allreduce_async,
    allreduce_async_,
    grouped_allreduce,
    grouped_allreduce_,
    grouped_allreduce_async,
    grouped_allreduce_async_,
)
from ._reducescatter import (
    grouped_reducescatter,
    grouped_reducescatter_async,
    reducescatter,
    reducescatter_async,
)
from ._shards import DataShard, ShardedSampler, ShardedStep, allreduce_shards
from ._timeline import start_timeline, stop_timeline
from . import _context, elastic

#: Horovod's name of `CollectiveError`.
HorovodInternalError = CollectiveError

__version__ = _version_of("elastic-node")


def init(comm: None = None, process_sets: Optional[Sequence[ProcessSet]] = None) -> None:
    """Attaches this process to the driver that started it; without one it is a world of one. Calling it again
    does nothing.

    Blocks until the driver has answered. Call it on the thread that trains: all else is called there, too.

    In a child of a worker that has joined, forked or started by multiprocessing, it does nothing. Such a process, a DataLoader's
    for example, has no part in the job, and collectives raise there, as do `rank` and the like. These answer with the worker's
    while multiprocessing imports the script.

    Args:
        comm: must be left out: ranks are given by the driver.
        process_sets: made known at once, by every rank.

    Raises:
        ElasticError: the driver cannot be reached, or refuses this process.
        ValueError: `comm` is given.
    """
    if comm is not None:
        raise ValueError("comm is not taken: the driver says who takes part; give process_sets for parts of the world")
    _context.init()
    for process_set in (process_sets or ()) if _context.is_initialized() else ():
        add_process_set(process_set)


def shutdown() -> None:
    """Waits until all ranks have come here; `init` may follow. The job is left at the end of the process. Within
    `elastic.run`, which leaves by itself, it does nothing.

    Raises:
        CollectiveError: a worker was lost, or the generation was aborted.
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
    """The number of workers that take part: the world size."""
    return _context.place()[1]


def local_rank() -> int:
    """This worker's number among those of its host."""
    return _context.place()[2]


def local_size() -> int:
    """The number of workers of its host."""
    return _context.place()[3]


def cross_rank() -> int:
    """The number of its host among those that have a worker with this local rank."""
    return _context.place()[4]


def cross_size() -> int:
    """The number of hosts that have a worker with this local rank."""
    return _context.place()[5]


def generation() -> int:
    """The number of this generation: 0 without a driver, and before the first. It only grows."""
    return _context.generation()


def note(text: str) -> None:
    """Shows a short text beside this worker in `elastic-node status`; 256 bytes of UTF-8 at most,
    what is longer is cut. It does nothing before the first generation.

    Raises:
        ValueError: `init` was not called.
    """
    _context.session().note(text)


def report(**values: SupportsFloat) -> None:
    """Reports numbers by name, for `elastic-node status`, the job's page and its metrics::

        en.report(loss=loss, accuracy=0.96)
        en.report(**{"loss/train": loss})

    The last value of each name is shown. A call sends nothing: values travel with what the worker tells the driver at
    most ten times a second. A tensor of one element is a number, too; one on a GPU is waited for, as by `float()`. It
    does nothing before the first generation.

    Raises:
        TypeError: a value is no number.
        ValueError: a value is not finite; a name is longer than 64 bytes, or has a control character; the worker has
            reported 16 other names; `init` was not called. Values named before the wrong one are taken.
    """
    session = _context.session()
    for name, value in values.items():
        try:
            number = float(value)
        except (TypeError, ValueError, OverflowError, RuntimeError) as error:
            raise TypeError(f"{name!r} was reported as a {type(value).__name__}, not a number: {error}") from error
        session.report(name, number)


@_contextmanager
def section(name: str, within: Optional[float] = None) -> Iterator[None]:
    """Names a part of the program in which the other ranks may wait for this one for longer than in a step, such as an
    evaluation or a checkpoint by rank 0::

        with en.section("evaluation"):
            evaluate(model)

    How long is usual is learnt for each name by itself; until one wait has ended, 120 s are. A worker for which others
    have waited for longer counts as hanging (`--on-hang`). Sections may be nested: the innermost counts. It does nothing
    outside of a generation.

    The time in a section is no part of a step, but for sections called ``"data"``, in which the program waits for its
    data: goodput has that time in a bucket of its own. torch's `DataLoader` needs no section.

    Args:
        name: its first 64 bytes of UTF-8 count.
        within: how long others may wait for a worker in it, in seconds, in place of what is learnt. `--hang-timeout`
            bounds it.

    Raises:
        ValueError: `init` was not called, or `within` is no number of seconds.
    """
    begun = _context.session().begin_section(name, within)
    try:
        yield
    finally:
        begun.end()


__all__ = [
    "Adasum",
    "Average",
    "CollectiveError",
    "Compression",
    "DataShard",
    "ElasticError",
    "Handle",
    "HorovodInternalError",
    "HostsUpdatedInterrupt",
    "Max",
    "Min",
    "ProcessSet",
    "Product",
    "ReduceOp",
    "ShardedSampler",
    "ShardedStep",
    "Sum",
    "add_process_set",
    "allgather",
    "allgather_async",
    "allgather_object",
    "allreduce",
    "allreduce_",
    "allreduce_async",
    "allreduce_async_",
    "allreduce_shards",
    "alltoall",
    "alltoall_async",
    "barrier",
    "broadcast",
    "broadcast_",
    "broadcast_async",
    "broadcast_async_",
    "broadcast_object",
    "ccl_built",
    "cross_rank",
    "cross_size",
    "cuda_built",
    "ddl_built",
    "elastic",
    "generation",
    "global_process_set",
    "gloo_built",
    "gloo_enabled",
    "grouped_allgather",
    "grouped_allgather_async",
    "grouped_allreduce",
    "grouped_allreduce_",
    "grouped_allreduce_async",
    "grouped_allreduce_async_",
    "grouped_reducescatter",
    "grouped_reducescatter_async",
    "init",
    "is_homogeneous",
    "is_initialized",
    "join",
    "local_rank",
    "local_size",
    "mpi_built",
    "mpi_enabled",
    "mpi_threads_supported",
    "nccl_built",
    "note",
    "poll",
    "rank",
    "reducescatter",
    "reducescatter_async",
    "remove_process_set",
    "report",
    "rocm_built",
    "section",
    "shutdown",
    "size",
    "start_timeline",
    "stop_timeline",
    "synchronize",
]
