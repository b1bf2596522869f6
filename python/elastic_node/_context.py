"""The state of this process in its job: the session, the place, the groups. The other modules ask here."""

from __future__ import annotations

import atexit
import multiprocessing
import os
import sys
import threading
from typing import Callable, List, Optional, Tuple

from . import _native, _stacks

Place = Tuple[int, int, int, int, int, int]

#: torchrun's variables with the parts of a place.
_PLACE_VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE")

#: The variable by which processes that a worker starts know that it has joined its job: the job's id and the worker's.
_JOINED = "ELASTIC_ATTACHED"

_FORKED = "this process was forked from a worker, and has no part in its job: call collectives in the worker itself"
_STARTED = (
    "this process was started by multiprocessing, such as a DataLoader's, in a worker, and has no part in its job: call "
    'collectives in the worker itself, in functions or under `if __name__ == "__main__":`'
)

_session: Optional[_native.Session] = None
#: The thread that has the session, once there is one: it calls `init`, and trains.
_job_thread = 0
#: Whether the session has a driver. Read by any thread.
_has_driver = False
_place: Optional[Place] = None
#: The group of all ranks, and its generation; `None` outside of a generation. Read by any thread, such as autograd's.
_world: Optional[_native.Group] = None
_generation = 0
#: The number of shards that the driver has dealt to each rank of the generation; empty if they are dealt evenly. Read by any
#: thread, too.
_shard_counts: List[int] = []
#: The state that `run` keeps in step; `None` outside of it.
_state: Optional[object] = None
#: Whether training has ended, and the session has left the job.
_has_ended = False
#: Why this process has no part in the job of the worker whose child it is; `None` in any other process.
_no_part: Optional[str] = None
#: Whether `shutdown` was called, and no `init` since. The job is left at the end of the process.
_is_shut_down = False
_begin_hooks: List[Callable[[], None]] = []
_end_hooks: List[Callable[[], None]] = []
_commit_hooks: List[Callable[[], None]] = []
_look_hooks: List[Callable[[], None]] = []
#: See `cover`.
_covered: Optional[BaseException] = None


def init() -> None:
    """See `elastic_node.init`."""
    global _session, _job_thread, _has_driver, _is_shut_down, _has_ended, _no_part
    if _is_of_multiprocessing() and os.environ.get(_JOINED) == _worker():
        # A child by "spawn" or "forkserver" imports the script again, and comes by the script's call of `init`.
        _no_part = _no_part or _STARTED
    if _no_part is not None:
        return
    if _session is None:
        _session = _new_session()
        _has_ended = False
        _job_thread = threading.get_ident()
        _has_driver = _session.has_driver
        if _has_driver:
            os.environ[_JOINED] = _worker()
            _stacks.offer()
    _is_shut_down = False


def _worker() -> str:
    """The job's id and the worker's, as this process's environment has them."""
    return f"{os.environ.get('ELASTIC_JOB')} {os.environ.get('ELASTIC_WORKER')}"


def _is_importing_script() -> bool:
    """Whether multiprocessing has started this process, or its server of forks, and imports the script in it."""
    return getattr(multiprocessing.current_process(), "_inheriting", False)


def _is_of_multiprocessing() -> bool:
    return multiprocessing.parent_process() is not None or _is_importing_script()


def _new_session() -> _native.Session:
    try:
        return _native.Session()
    except _native.ElasticError as error:
        if not _is_of_multiprocessing():
            raise
        raise _native.ElasticError(
            "this process was started by multiprocessing, and another one may have joined the job by the same credential: call "
            f"init() in the worker itself, before it starts any, or in one of them alone ({error})"
        ) from error


def is_initialized() -> bool:
    return _session is not None and not _is_shut_down


def is_job_thread() -> bool:
    """Whether the caller is the thread that may use the session. A worker's child has none."""
    return _no_part is None and threading.get_ident() == _job_thread


def check_process(raised: Optional[BaseException] = None) -> None:
    """Raises in a worker's child: it may have copies of the worker's groups, and has no part in its job. `raised` takes
    precedence."""
    if _no_part is not None:
        raise raised or _native.CollectiveError(_no_part)


def check_thread() -> None:
    """Raises on a thread that may not use the session."""
    # A worker's child learns from `check_process` that it has no part in the job.
    if _no_part is None and not is_job_thread():
        raise RuntimeError(
            f"called on the thread {threading.current_thread().name!r}: training, commits and all else of elastic_node are called "
            "on the thread that called elastic_node.init()"
        )


def session() -> _native.Session:
    """The session. The thread that called `init` calls this.

    Raises:
        ValueError: there is none.
        RuntimeError: another thread calls.
    """
    current = _any_session()
    check_thread()
    return current


def _any_session() -> _native.Session:
    check_process()
    if _session is None or _is_shut_down:
        raise ValueError("elastic_node is not initialized: call elastic_node.init() first")
    return _session


def shutdown() -> None:
    """See `elastic_node.shutdown`."""
    global _session, _place, _is_shut_down
    if not is_initialized() or is_in_run():
        return
    assert _session is not None
    check_thread()
    if _has_driver:
        if _world is not None:
            call = _world.begin("shutdown", None, "")
            call.barrier()
            _world.run_call(call).wait()
        _is_shut_down = True
        return
    ending, _session, _place = _session, None, None
    _leave(ending, None)


def _leave(ending: _native.Session, error: Optional[BaseException]) -> None:
    """Leaves a generation that was entered without `run`, and waits until all ranks have."""
    if ending.in_generation:
        leaving()
        ending.conclude(error)
        while ending.enter() is not None:
            # The other ranks must train again; a program without state has nothing to contribute.
            ending.conclude(None)


def _forked() -> None:
    """This process has the worker's memory, and none of its threads."""
    global _session, _place, _world, _no_part
    if _session is None:
        return
    _stacks.withdraw()
    _native.Session.abandon(_session)
    _session = _place = _world = None
    _no_part = _FORKED


os.register_at_fork(after_in_child=_forked)


# Registered first, so that it runs last.
atexit.register(_native.end_callbacks)


@atexit.register
def _at_exit() -> None:
    # The session of an embedder's thread cannot be used here: the driver learns from the connection's end.
    if _session is None or is_in_run() or not is_job_thread() or not _session.in_generation:
        return
    error = getattr(sys, "last_exc", None) or getattr(sys, "last_value", None)
    try:
        _leave(_session, error)
    except BaseException as raised:  # `error` is printed already, or ends this process.
        if raised is not error:
            raise


def begin_run(state: object) -> _native.Session:
    """The session, with the state that `run` keeps in step."""
    global _state
    current = session()
    _check_not_ended()
    if current.in_generation:
        raise RuntimeError(
            "elastic_node.elastic.run was called after a collective, or within run: under run, "
            "collectives belong into the training function"
        )
    current.keep(state)
    _state = state
    return current


def is_in_run() -> bool:
    """Whether `elastic.run` runs."""
    return _state is not None


def state() -> Optional[object]:
    """The state that `elastic.run` keeps in step; `None` outside of it."""
    return _state


def end_run() -> None:
    global _state
    _state = None


def ended() -> None:
    """Training has ended, and the session has left the job."""
    global _has_ended
    _has_ended = True


def _check_not_ended() -> None:
    if _has_ended:
        raise _native.ElasticError(
            "this process has left its job, since training has ended: a job has one elastic.run, and no collectives after it. "
            "Move what follows, such as an evaluation of all ranks and the saving of the model, into the training function, behind "
            "its loop"
        )


def entered(current: _native.Session) -> None:
    """A generation was entered."""
    global _place, _world, _generation, _shard_counts, _covered
    _covered = None
    _place, _world, _generation = current.place, current.group, current.generation or 0
    _shard_counts = current.shard_counts
    if current.has_driver:
        # For frameworks, which read them when they begin.
        os.environ.update(zip(_PLACE_VARIABLES, map(str, _place or ())))
    for hook in _begin_hooks:
        hook()


def shard_deal(shards: int) -> _native.ShardDeal:
    """The deal of so many logical shards to the ranks of the generation: the driver's, or an even one. Any thread may
    ask."""
    world = place()[1] if is_initialized() else 1
    return _native.ShardDeal(shards, world, _shard_counts)


def carry_shards(deal: _native.ShardDeal) -> None:
    """Tells the driver that this rank's steps are dealt by shards. The training thread calls it."""
    if is_initialized():
        first, end = deal.of(place()[0])
        session().carry_shards(end - first)


def cover(error: BaseException) -> None:
    """Keeps the error of a collective that a framework has called within a compiled step, on any thread: the framework raises
    one of its own instead."""
    global _covered
    _covered = _covered or error


def uncovered(raised: Optional[BaseException]) -> Optional[BaseException]:
    """The error of the collective, if the exception of a training function may stand for it; else the exception."""
    is_own = isinstance(raised, (_native.CollectiveError, _native.HostsUpdatedInterrupt))
    if _covered is None or is_own or not isinstance(raised, Exception):
        return raised
    _covered.__cause__ = raised
    return _covered


def on_generation_begin(hook: Callable[[], None]) -> None:
    """Calls `hook` whenever a generation begins here, before the training function."""
    _begin_hooks.append(hook)


def on_generation_end(hook: Callable[[], None]) -> None:
    """Calls `hook` whenever a generation ends here, before its groups are closed."""
    _end_hooks.append(hook)


def on_commit(hook: Callable[[], None]) -> None:
    """Calls `hook` before each commit and each save of a state; it raises to refuse one."""
    _commit_hooks.append(hook)


def check_commit() -> None:
    """A state is about to be saved.

    Raises:
        Exception: of a hook that refuses it.
    """
    for hook in _commit_hooks:
        hook()


def on_look(hook: Callable[[], None]) -> None:
    """Calls `hook` before each look at the world without a commit, by `check_host_updates`."""
    _look_hooks.append(hook)


def check_look() -> None:
    """The world is about to be looked at without a commit."""
    for hook in _look_hooks:
        hook()


def leaving() -> None:
    """A generation is about to be concluded."""
    global _world
    for hook in _end_hooks:
        hook()
    _world = None


def place() -> Place:
    """Ranks and sizes: of the current or last generation, before the first as this process was started. Any thread may
    ask. A script may do so beside `init`, also where multiprocessing imports it in a child of the worker: these are the
    worker's, as it has started the child."""
    is_asked_by_script = _no_part is not None and _is_importing_script()
    if not is_asked_by_script:
        _any_session()
        if _place is not None:
            return _place
        if not _has_driver:
            return (0, 1, 0, 1, 0, 1)

    rank, size, local_rank, local_size, cross_rank, cross_size = (
        int(os.environ.get(name, default)) for name, default in zip(_PLACE_VARIABLES, (0, 1, 0, 1, 0, 1))
    )
    return rank, size, local_rank, local_size, cross_rank, cross_size


def world() -> _native.Group:
    """The group of all ranks. Outside of `run`, the first call enters the first generation."""
    if _world is not None and not _is_shut_down:
        return _world
    current = session()
    if is_in_run():
        raise _native.CollectiveError("the generation has ended")
    _check_not_ended()
    if current.enter() is None:
        raise _native.ElasticError("the job is over")
    entered(current)
    assert _world is not None
    return _world


def in_generation() -> bool:
    return _world is not None and not _is_shut_down


def generation() -> int:
    """The generation's number; that of the last one outside of any."""
    return _generation
