"""The stacks of this process's threads, for the agent that looks at a worker that others wait for: a signal has them
written into a file in memory, which the agent reads and empties.

The signal is handled while the process sleeps in the kernel, computes, or is in native code that holds the GIL. This
module uses no other one of the package: the agent's tests load it alone.
"""

from __future__ import annotations

import faulthandler
import fcntl
import logging
import os
import signal
from typing import Optional

#: The agent finds the file by this name, among the open descriptors of the process.
NAME = "elastic-stacks"

#: The agent's number, too (`stack_file.rs`): few programs use a real-time signal, and those begin with the first.
SIGNAL = signal.SIGRTMAX - 3

_file: Optional[int] = None


def offer() -> None:
    """Has the stacks written whenever the signal comes. If that is impossible, the program goes on without."""
    global _file
    if _file is not None:
        return
    file = None
    try:
        if not _is_free():
            raise OSError(f"the program handles signal {SIGNAL}")
        file = os.memfd_create(NAME)
        # The agent empties the file: later writes then begin at its start.
        fcntl.fcntl(file, fcntl.F_SETFL, fcntl.fcntl(file, fcntl.F_GETFL) | os.O_APPEND)
        faulthandler.register(SIGNAL, file=file, all_threads=True, chain=False)
    except Exception as error:
        logging.getLogger(__name__).debug("the agent cannot have the stacks of this process: %s", error)
        if file is not None:
            os.close(file)
        return
    _file = file


def withdraw() -> None:
    """For a process that was forked from one that offers its stacks: its file is that of its parent."""
    global _file
    if _file is None:
        return
    _file = None
    faulthandler.unregister(SIGNAL)


def _is_free() -> bool:
    """Whether nobody handles the signal: neither Python code, nor native code, of which `signal` does not know."""
    if signal.getsignal(SIGNAL) is not signal.SIG_DFL:
        return False
    with open("/proc/self/status", encoding="ascii", errors="replace") as status:
        caught = next(line for line in status if line.startswith("SigCgt:"))
    return not int(caught.split()[1], 16) >> (SIGNAL - 1) & 1
