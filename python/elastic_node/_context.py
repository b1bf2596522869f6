"""What this process is in its job: the session, the place, the groups. The other modules ask here."""

from __future__ import annotations

import atexit
import os
import sys
from typing import Callable, List, Optional, Tuple

from . import _native

Place = Tuple[int, int, int, int, int, int]

_session: Optional[_native.Session] = None
_place: Optional[Place] = None
_in_run = False
_generation_hooks: List[Callable[[], None]] = []


def init() -> None:
    """See `elastic_node.init`."""
    global _session
    if _session is None:
        _session = _native.Session()


def is_initialized() -> bool:
    return _session is not None


def session() -> _native.Session:
    if _session is None:
        raise ValueError("elastic_node is not initialized: call elastic_node.init() first")
    return _session


def shutdown() -> None:
    """See `elastic_node.shutdown`."""
    global _session, _place
    if _session is None or _in_run:
        return
    ending, _session, _place = _session, None, None
    _leave(ending, None)


def _leave(ending: _native.Session, error: Optional[BaseException]) -> None:
    """Leaves a generation that was entered without `run`, and waits until all ranks have."""
    if ending.in_generation:
        _run_generation_hooks()
        ending.conclude(error)
        while ending.enter() is not None:
            # Others must train again. A program without state has nothing to add.
            ending.conclude(None)


@atexit.register
def _at_exit() -> None:
    if _session is None or _in_run or not _session.in_generation:
        return
    error = getattr(sys, "last_exc", None) or getattr(sys, "last_value", None)
    try:
        _leave(_session, error)
    except BaseException as raised:  # It is printed already, or is the reason why this process ends.
        if raised is not error:
            raise


def begin_run(state: object) -> _native.Session:
    """The session, with the state that `run` keeps in step."""
    global _in_run
    current = session()
    if current.in_generation:
        raise RuntimeError(
            "elastic_node.elastic.run was called after a collective, or within run: under run, "
            "collectives belong into the training function"
        )
    current.keep(state)
    _in_run = True
    return current


def end_run() -> None:
    global _in_run
    _in_run = False


def entered(current: _native.Session) -> None:
    """A generation was entered."""
    global _place
    _place = current.place


def on_generation_end(hook: Callable[[], None]) -> None:
    """Calls `hook` whenever a generation ends here, before its groups are closed."""
    _generation_hooks.append(hook)


def leaving() -> None:
    """A generation is about to be concluded."""
    _run_generation_hooks()


def _run_generation_hooks() -> None:
    for hook in _generation_hooks:
        hook()


def place() -> Place:
    """Ranks and sizes: of the current or last generation, before the first as this process was started."""
    current = session()
    if _place is not None:
        return _place
    if not current.has_driver:
        return (0, 1, 0, 1, 0, 1)

    def number(name: str, default: int) -> int:
        return int(os.environ.get(name, default))

    return (
        number("RANK", 0),
        number("WORLD_SIZE", 1),
        number("LOCAL_RANK", 0),
        number("LOCAL_WORLD_SIZE", 1),
        number("GROUP_RANK", 0),
        number("GROUP_WORLD_SIZE", 1),
    )


def world() -> _native.Group:
    """The group of all ranks. Outside of `run`, the first call enters the first generation."""
    current = session()
    if not current.in_generation:
        if _in_run:
            raise _native.CollectiveError("the generation has ended")
        if current.enter() is None:
            raise _native.ElasticError("the job is over")
        entered(current)
    group = current.group
    assert group is not None
    return group
