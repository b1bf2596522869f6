"""For programs that lose a rank, and wait until another one has come in its place."""

import os
import signal
import time
from pathlib import Path

import elastic_node as en

ONCE, AWAITED = (Path(os.environ["CONTROL"]) / name for name in ("killed", "awaited"))


def die_once(rank):
    """This rank dies by kill -9, once in the job."""
    if en.rank() == rank and not ONCE.exists():
        ONCE.touch()
        os.kill(os.getpid(), signal.SIGKILL)


def come_when_awaited():
    """The one in the place of the dead comes once the others wait for it, so that each run has the same steps with as many ranks.
    Call it before `init`."""
    until = time.monotonic() + 60
    while ONCE.exists() and not AWAITED.exists() and time.monotonic() < until:
        time.sleep(0.01)


def until_there_are(size, state):
    """Waits until the world has this size. The job has deadlines."""
    AWAITED.touch()
    while en.size() < size:
        en.barrier()
        state.check_host_updates()
        time.sleep(0.01)
