"""Threads for the follow-up of operations. Callbacks of torch's futures may launch collectives and wait for them, so
they cannot be on the collectives' thread, nor wait behind each other. `_work` puts them here."""

from __future__ import annotations

import atexit
import queue
import threading
import time
from typing import Callable, List, Optional

#: Most landings under way at once; each is a callback that waits for a collective. Further ones queue.
_THREADS_MAX = 64

#: Maximum time that the interpreter's exit waits for landings under way, in seconds.
_EXIT_WAIT_S = 5.0


class Landings:
    """Threads are started when none is free, and stay until `close`."""

    def __init__(self) -> None:
        #: `None` ends the thread that takes it.
        self._queue: "queue.SimpleQueue[Optional[Callable[[], None]]]" = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._free = 0
        self._threads: List[threading.Thread] = []
        self._is_closed = False

    def put(self, landing: Callable[[], None]) -> None:
        """Has it called soon, on another thread; never, once the interpreter exits."""
        with self._lock:
            if self._is_closed:
                return
            if self._free:
                self._free -= 1
            elif len(self._threads) < _THREADS_MAX:
                thread = threading.Thread(target=self._run, name="landings", daemon=True)
                self._threads.append(thread)
                thread.start()
            self._queue.put(landing)

    def close(self) -> None:
        """Ends the threads after the landings that are queued. A landing is often in C++, which gives the interpreter's
        lock up: a thread that comes back from there during the interpreter's finalization ends the process with
        `std::terminate`."""
        with self._lock:
            self._is_closed = True
            for _ in self._threads:
                self._queue.put(None)
        deadline = time.monotonic() + _EXIT_WAIT_S
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))

    def _run(self) -> None:
        while True:
            landing = self._queue.get()
            if landing is None:
                return
            landing()
            with self._lock:
                self._free += 1


landings = Landings()
atexit.register(landings.close)
