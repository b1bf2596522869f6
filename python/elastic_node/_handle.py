"""Handles of operations that run beside the training thread. The modules with the collectives make them."""

from __future__ import annotations

import threading
from typing import Callable, Generic, Optional, TypeVar, cast

from . import _native

Result = TypeVar("Result")
#: The same, as a handle of integers is one of numbers.
Landed = TypeVar("Landed", covariant=True)


_caller = threading.local()


def waited(launch: Callable[[], "Handle[Result]"]) -> Result:
    """Launches a call, and waits for it. The call runs on this thread, unless others are in flight."""
    before = waits_at_once()
    _caller.waits_at_once = True
    try:
        handle = launch()
    finally:
        _caller.waits_at_once = before
    return handle.wait()


def waits_at_once() -> bool:
    """Whether this thread launches a call for which it waits at once."""
    return getattr(_caller, "waits_at_once", False)


class Handle(Generic[Landed]):
    """An operation that runs beside the training thread. Leave its arrays alone until `synchronize`."""

    def __init__(self, native: _native.Handle, result: Callable[[], Landed]) -> None:
        self._native = native
        self._result = result
        self._landed = False
        self._value: Optional[Landed] = None
        self._error: Optional[BaseException] = None

    def done(self) -> bool:
        """Whether it is done, well or not. If so, its result is there, in place as well."""
        if not self._landed and self._native.done():
            self._land()
        return self._landed

    def wait(self) -> Landed:
        """Waits until it is done, and returns the result.

        Raises:
            CollectiveError: a worker was lost, the generation was aborted, or ranks made calls that do not match.
        """
        self._land()
        if self._error is not None:
            raise self._error
        return cast(Landed, self._value)

    def _land(self) -> None:
        if self._landed:
            return
        try:
            self._native.wait()
            self._value = self._result()
        except BaseException as error:  # Every wait raises the error.
            self._error = error
        self._landed = True


def synchronize(handle: Handle[Result]) -> Result:
    """Waits for an operation that a function with `async` in its name began; returns its result.

    Raises:
        CollectiveError: a worker was lost, the generation was aborted, or ranks made calls that do not match.
    """
    return handle.wait()


def poll(handle: Handle[Result]) -> bool:
    """Whether an operation is done: `synchronize` returns at once then."""
    return handle.done()
