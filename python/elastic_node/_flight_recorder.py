"""Counts of the collectives that torch has recorded for this process, for the agent that looks at a worker by
restart: a thread reads torch's flight recorder every two seconds, and leaves the counts in a file in memory.

The counts are those of torch's default process group, `last_enqueued_collective` and `last_completed_collective`. The
flight recorder is on by default. This module uses no other one of the package: torch's plug-in loads it alone.
"""

from __future__ import annotations

import atexit
import functools
import json
import logging
import multiprocessing
import os
import sys
import threading
from typing import Any, Callable, List, Optional, Tuple

#: The agent finds the file by this name, among the open descriptors of the process.
NAME = "elastic-collectives"

#: Seconds from one reading to the next. An agent looks at a process every three seconds at most.
EVERY = 2.0

#: The backends that have a recorder of their own. Each counts the collectives that the default group left to it.
_BACKENDS = ("gloo", "nccl")

#: Longest time in seconds that the end of the process waits for the thread.
END_WITHIN = 1.0

_is_offered = False
_is_over = threading.Event()


def offer() -> None:
    """Has the counts written from now on, in a worker that is one rank of several from its start. If that is
    impossible, the program goes on without."""
    global _is_offered
    is_rank = "RANK" in os.environ and os.environ.get("WORLD_SIZE", "1") != "1"
    if _is_offered or not is_rank or multiprocessing.parent_process() is not None:
        return
    _is_offered = True
    try:
        file = os.memfd_create(NAME)
        thread = threading.Thread(target=_watch, args=(file,), name=NAME, daemon=True)
        thread.start()
        # The interpreter must not end while the thread is in torch.
        atexit.register(_end, thread, os.getpid())
    except Exception as error:
        _log("not offered", error)


def _end(thread: threading.Thread, pid: int) -> None:
    """At the end of the process. A fork has no such thread."""
    if os.getpid() == pid:
        _is_over.set()
        thread.join(END_WITHIN)


def _watch(file: int) -> None:
    """The thread. A fork of the process has the file, and not the thread."""
    try:
        while not _is_over.wait(EVERY):
            counts = _counts()
            if counts is not None:
                # As long as those before: a reader sees these or those.
                os.pwrite(file, b"%020d %020d\n" % counts, 0)
    except Exception as error:
        _log("given up", error)


def _counts() -> Optional[Tuple[int, int]]:
    """The numbers of collectives of the default group that were entered and completed; `None` before it is there, or
    where torch has no recorder."""
    distributed = sys.modules.get("torch.distributed")
    native = sys.modules.get("torch._C._distributed_c10d")
    if distributed is None or native is None or not distributed.is_initialized():
        return None
    known = [counts for counts in map(_of_dump, _dumps(native)) if counts is not None]
    return (sum(it[0] for it in known), sum(it[1] for it in known)) if known else None


def _dumps(native: Any) -> List[Callable[[], bytes]]:
    """Functions that give the state of each recorder, without the collectives themselves."""
    dump = getattr(native, "_dump_fr_trace_json", None)
    if dump is not None and "backend" in (dump.__doc__ or ""):
        return [functools.partial(dump, False, False, backend) for backend in _BACKENDS]
    dump = dump or getattr(native, "_dump_nccl_trace_json", None)
    return [functools.partial(dump, False, False)] if dump is not None else []


def _of_dump(dump: Callable[[], bytes]) -> Optional[Tuple[int, int]]:
    """The counts of one recorder. The default group is the first that a process makes."""
    status = json.loads(dump()).get("pg_status", {}).get("0")
    if not status:
        return None
    # Below zero before the first one.
    entered, completed = (
        max(int(status[f"last_{it}_collective"]), 0) for it in ("enqueued", "completed")
    )
    return entered, completed


def _log(what: str, error: Exception) -> None:
    logging.getLogger(__name__).debug("the counts of torch's collectives are %s: %s", what, error)
