"""Handles of operations that run beside the training thread. The modules with the collectives make them."""

from __future__ import annotations

from typing import Any, Callable

from . import _native


class Handle:
    """An operation that runs beside the training thread. Leave its arrays alone until `synchronize`."""

    def __init__(self, native: _native.Handle, result: Callable[[], Any]):
        self._native = native
        self._result = result

    def done(self) -> bool:
        """Whether it is done, well or not."""
        return self._native.done()

    def wait(self) -> Any:
        """Waits until it is done, and returns the result.

        Raises:
            CollectiveError: a worker was lost, or the generation was aborted.
        """
        self._native.wait()
        return self._result()


def synchronize(handle: Handle) -> Any:
    """Waits for an operation that a function with `async` in its name began; returns its result.

    Raises:
        CollectiveError: a worker was lost, or the generation was aborted.
    """
    return handle.wait()


def poll(handle: Handle) -> bool:
    """Whether an operation is done: `synchronize` returns at once then."""
    return handle.done()
