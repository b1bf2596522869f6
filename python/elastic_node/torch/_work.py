"""`Work`: a launched operation, in the form that torch knows. Made by `_process_group` and `_mail`."""

from __future__ import annotations

import threading
from contextlib import nullcontext
from datetime import timedelta
from typing import Callable, ContextManager, List, Optional, Sequence, Union

import torch
import torch.distributed as dist
from torch._C._profiler import _RecordFunctionFast
from torch.futures import Future

from .. import _native
from ._landings import landings
from ._untraced import untraced


@untraced
class Work(dist.Work):
    """An operation that was launched.

    One on a GPU is ordered by streams, as NCCL's own works are: `wait` has the current stream wait for it, and the future is
    complete for whoever uses its tensors on a stream, as soon as it is queued. Whether it went well shows later: in `exception`, in
    the next operation, and in any case before a commit.
    """

    def __init__(self, result: Sequence[torch.Tensor]) -> None:
        super().__init__()
        devices: List[Union[int, str, torch.device]] = list({tensor.device for tensor in result if tensor.is_cuda})
        self._landing: Future[None] = Future(devices=devices) if devices else Future()
        self._stream: Optional[torch.cuda.Stream] = None
        self._queued = threading.Event()
        # A future that Python fails has an exception as its value, which DDP's C++ takes for tensors. A future that
        # depends on another fails in the way that C++ expects.
        self._future: Future[List[torch.Tensor]] = self._landing.then(self._outcome)
        self._result = list(result)
        self._after: Optional[Callable[[], None]] = None
        self._error: Optional[BaseException] = None
        self._handle: Optional[_native.Handle] = None
        self._lock = threading.Lock()
        self._has_landed = False
        # Not the future's state: that is set by another thread, after a `wait` may have returned.
        self._is_finished = False
        self._event: Optional[_RecordFunctionFast] = None
        self._began_on = 0

    def record(self, title: str, inputs: Sequence[torch.Tensor]) -> None:
        """Makes it an event in torch's profiler, if that runs: from here until it has landed."""
        if torch._C._autograd._profiler_enabled():  # pyright: ignore[reportAttributeAccessIssue]  # torch has no types for it.
            self._event = _RecordFunctionFast(title, list(inputs))
            self._event.__enter__()
            self._began_on = threading.get_ident()

    def began_here(self) -> bool:
        """Whether its event in the profiler has begun on this thread."""
        return self._event is not None and self._began_on == threading.get_ident()

    def before_after(self, first: Callable[[], object]) -> None:
        """Adds a function that runs first when the operation has ended."""
        then = self._after

        def both() -> None:
            first()
            if then is not None:
                then()

        self._after = both

    def order_by(self, stream: Optional[torch.cuda.Stream]) -> None:
        """The stream on which it is queued, before it is launched; None for an operation that the host waits for."""
        self._stream = stream

    def queued(self) -> None:
        """Called on the collectives' thread when the operation is on its stream."""
        if self._stream is not None:
            self._queued.set()
            landings.put(self._land)

    def landed(self, error: Optional[BaseException]) -> None:
        """Called on the collectives' thread when the operation is done."""
        event, self._event = self._event, None
        if event is not None:
            event.__exit__(None, None, None)
        if error is not None:
            self._error = error
        self._has_landed = True
        if not self._queued.is_set():
            self._queued.set()
            landings.put(self._land)

    def _land(self) -> None:
        # torch records the use of a future's result on the current stream.
        with self._on_stream():
            self._finish()
            self._landing.set_result(None)

    def _finish(self) -> None:
        """Runs the operation's follow-up once, on the first thread that comes here."""
        with self._lock:
            after, self._after = self._after, None
            if after is not None and self._error is None:
                try:
                    with torch.no_grad(), self._on_stream():
                        after()
                    if self._stream is not None:
                        # Memory that it has used is given back by the host.
                        self._stream.synchronize()
                except Exception as error:
                    self._error = error
            self._is_finished = True

    def _on_stream(self) -> ContextManager[object]:
        # `torch.cuda.stream(None)` would start CUDA.
        return nullcontext() if self._stream is None else torch.cuda.stream(self._stream)

    def _outcome(self, _landing: Future[None]) -> List[torch.Tensor]:
        if self._error is not None:
            raise self._error
        return self._result

    def _await(self, timeout_s: Optional[float]) -> None:
        """Waits until the operation has landed; its own deadline is that of its group."""
        if self._stream is not None:
            self._queued.wait()
        elif self._handle is not None:
            self._handle.wait()

    def wait(self, timeout: Optional[timedelta] = None) -> bool:
        # Torch passes a timeout of zero for none.
        self._await(timeout.total_seconds() if timeout else None)
        self._finish()
        if self._error is not None:
            raise self._error
        if self._stream is not None:
            torch.cuda.current_stream(self._stream.device).wait_stream(self._stream)
        return True

    def is_completed(self) -> bool:
        return self._has_landed and self._is_finished

    def is_success(self) -> bool:
        return self.is_completed() and self._error is None

    def exception(self) -> Optional[BaseException]:
        return self._error

    def result(self) -> List[torch.Tensor]:
        return self._result

    def get_future(self) -> "Future[List[torch.Tensor]]":
        return self._future


@untraced
class NotifiedWork(Work):
    """An operation without a handle of the collectives: the code that ends it calls `landed`, on any thread."""

    def __init__(self, result: Sequence[torch.Tensor]) -> None:
        super().__init__(result)
        self._over = threading.Event()

    def landed(self, error: Optional[BaseException]) -> None:
        if self.began_here():
            # It was over before it began. Torch's profiler wants an operation's end on another thread.
            landings.put(lambda: self.landed(error))
            return
        super().landed(error)
        self._over.set()


@untraced
class AllOf(NotifiedWork):
    """Several operations, as one that has landed when all of them are finished."""

    def __init__(self, works: Sequence[Work], result: Sequence[torch.Tensor] = ()) -> None:
        super().__init__(result)
        self._works, self._missing = works, len(works)
        # Its future is complete behind all of theirs.
        self.order_by(next((work._stream for work in works if work._stream is not None), None))

    def begin(self) -> None:
        """Begins to count; after `record`."""
        for work in self._works:
            work.get_future().add_done_callback(lambda _future: self._one_more())
        if not self._works:
            self.landed(None)

    def _one_more(self) -> None:
        with self._lock:
            self._missing -= 1
            is_last = not self._missing
        if is_last:
            self.landed(next((work.exception() for work in self._works if work.exception()), None))

    def _await(self, timeout_s: Optional[float]) -> None:
        for work in self._works:
            work.wait(None if timeout_s is None else timedelta(seconds=timeout_s))
        self._over.wait()
