"""Sends and receives of CPU tensors between two ranks, beside the group's collectives: in any order of tags, and from any
source. Called by `_process_group`.

Each pair of ranks that talks has a group of two for each direction, which forms with the first message. A message is a
header (tag and size) and the bytes. The receiving side takes messages as they come; those that nobody waits for yet are
kept, up to `_KEPT_MAX_BYTES`.
"""

from __future__ import annotations

import atexit
import collections
import threading
from typing import Callable, Deque, Dict, List, NamedTuple, Optional

import torch

from .. import _native
from .._torch_tensors import bytes_in
from . import _meeting
from ._untraced import untraced
from ._work import NotifiedWork

#: Bytes of messages from one rank that wait for a receive. With more, that rank's sends wait.
_KEPT_MAX_BYTES = 64 << 20

#: The tag of the last message.
_FAREWELL = -1

#: Maximum time that the interpreter's exit waits for a pair that forms, in seconds.
_EXIT_WAIT_S = 5.0

#: Forms the group by which the first rank sends to the second, for a mailbox.
MakePair = Callable[[int, int], _native.Group]


@untraced
class PeerWork(NotifiedWork):
    """A send or a receive. `source` is the rank that it came from."""

    def __init__(
        self, tensors: List[torch.Tensor], timeout_s: float, what: str, forget: Callable[["PeerWork"], None]
    ) -> None:
        super().__init__(tensors)
        self.source = -1
        self._timeout_s, self._what, self._forget = timeout_s, what, forget

    def _await(self, timeout_s: Optional[float]) -> None:
        timeout_s = self._timeout_s if timeout_s is None else timeout_s
        if not self._over.wait(timeout_s):
            self._forget(self)
            raise RuntimeError(f"Timed out waiting {timeout_s * 1000:.0f}ms for {self._what} operation to complete")

    def _source_rank(self) -> int:
        return self.source


class _Receive(NamedTuple):
    source: Optional[int]
    tag: int
    memory: torch.Tensor
    work: PeerWork

    def takes(self, source: int, tag: int) -> bool:
        return self.source in (None, source) and self.tag == tag


class _Send(NamedTuple):
    tag: int
    memory: torch.Tensor
    work: Optional[PeerWork]


class Mailbox:
    """One rank's sends and receives in a process group."""

    def __init__(self, rank: int, size: int, make_pair: MakePair) -> None:
        self._rank, self._size, self._make_pair = rank, size, make_pair
        # Callbacks of a launch may run before the launch has returned.
        self._lock = threading.RLock()
        self._outgoing: Dict[int, _Outgoing] = {}
        self._incoming: Dict[int, _Incoming] = {}
        self._receives: List[_Receive] = []
        self._is_closed = False

    def send(self, memory: torch.Tensor, to: int, tag: int, work: PeerWork) -> None:
        """Sends contiguous memory; `work` lands when it is on its way."""
        with self._lock:
            self._check(to)
            if to not in self._outgoing:
                self._outgoing[to] = _Outgoing(self._lock, lambda: self._make_pair(self._rank, to))
            self._outgoing[to].put(_Send(tag, memory, work))

    def recv(self, memory: torch.Tensor, source: Optional[int], tag: int, work: PeerWork) -> None:
        """Receives into contiguous memory; `work` lands when the message is there. From any rank, if no source is given."""
        receive = _Receive(source, tag, memory, work)
        others = [other for other in range(self._size) if other != self._rank]
        sources = others if source is None else [source]
        with self._lock:
            for rank in sources:
                self._check(rank)
                if rank not in self._incoming:
                    self._incoming[rank] = _Incoming(self, rank)
            if any(self._incoming[rank].give(receive) for rank in sources):
                return
            failed = [self._incoming[rank].error for rank in sources]
            if failed and all(failed):
                work.landed(failed[0])
                return
            self._receives.append(receive)
            for rank in sources:
                self._incoming[rank].go_on()

    def close(self) -> None:
        """Tells the other ranks that no more comes from here."""
        with self._lock:
            self._is_closed = True
            for outgoing in self._outgoing.values():
                outgoing.put(_Send(_FAREWELL, torch.empty(0, dtype=torch.uint8, device="cpu"), None))

    def forget(self, work: PeerWork) -> None:
        """A receive whose waiter has given up: its memory is not written any more, if no message for it has begun."""
        with self._lock:
            self._receives = [receive for receive in self._receives if receive.work is not work]

    def form(self, source: int) -> _native.Group:
        return self._make_pair(source, self._rank)

    @property
    def lock(self) -> threading.RLock:
        return self._lock

    def take(self, source: int, tag: int) -> Optional[_Receive]:
        """The first receive that waits for this message."""
        for number, receive in enumerate(self._receives):
            if receive.takes(source, tag):
                return self._receives.pop(number)
        return None

    def lost(self, source: int, error: BaseException) -> None:
        """Nothing comes from a rank any more: receives from it fail, and those from any if no rank is left."""
        is_last = len(self._incoming) == self._size - 1 and all(box.error for box in self._incoming.values())
        waiting, self._receives = self._receives, []
        for receive in waiting:
            if receive.source == source or (receive.source is None and is_last):
                receive.work.landed(error)
            else:
                self._receives.append(receive)

    def _check(self, peer: int) -> None:
        if self._is_closed:
            raise _native.CollectiveError("the process group was destroyed")
        if not 0 <= peer < self._size or peer == self._rank:
            raise ValueError(f"rank {peer} is not another rank of this group of {self._size}")


class _Outgoing:
    """Messages to one rank, in the order of their sends."""

    def __init__(self, lock: threading.RLock, form: Callable[[], _native.Group]) -> None:
        self._lock, self._form = lock, form
        self._queue: Deque[_Send] = collections.deque()
        self._pair: Optional[_native.Group] = None
        self._error: Optional[BaseException] = None
        self._is_sending = False
        self._header = torch.empty(2, dtype=torch.int64, device="cpu")
        _forming.begin(self._start)

    def put(self, message: _Send) -> None:
        if self._error is not None:
            if message.work is not None:
                message.work.landed(self._error)
            return
        self._queue.append(message)
        self._next()

    def _start(self) -> None:
        try:
            pair = self._form()
        except Exception as error:
            self._fail(error)
            return
        with self._lock:
            self._pair = pair
            self._next()

    def _next(self) -> None:
        while self._pair is not None and not self._is_sending and self._queue:
            try:
                self._begin(self._pair, self._queue[0])
            except Exception as error:
                # Nothing of this message is on its way: the others go on.
                self._is_sending = False
                work = self._queue.popleft().work
                if work is not None:
                    work.landed(error)

    def _begin(self, pair: _native.Group, message: _Send) -> None:
        memory = bytes_in(message.memory)
        self._header = torch.tensor([message.tag, memory.numel()], device="cpu")
        self._is_sending = True
        if not memory.numel():
            pair.send(self._header, 1, self._sent)
            return
        pair.send(self._header, 1, None)
        try:
            pair.send(memory, 1, self._sent)
        except Exception as error:
            # The other rank waits for these bytes, and would take the next header for them.
            self._fail(_native.CollectiveError(f"a message broke off behind its header: {error}"))

    def _sent(self, error: Optional[BaseException]) -> None:
        if error is not None:
            self._fail(error)
            return
        with self._lock:
            message = self._queue.popleft()
            self._is_sending = False
            if message.work is not None:
                message.work.landed(None)
            self._next()

    def _fail(self, error: BaseException) -> None:
        with self._lock:
            self._error, self._pair = error, None
            while self._queue:
                message = self._queue.popleft()
                if message.work is not None:
                    message.work.landed(error)


class _Incoming:
    """Messages from one rank."""

    def __init__(self, mailbox: Mailbox, source: int) -> None:
        self._mailbox, self._source = mailbox, source
        self._pair: Optional[_native.Group] = None
        self.error: Optional[BaseException] = None
        self._header = torch.empty(2, dtype=torch.int64, device="cpu")
        #: Messages without a receive, complete or on their way, and their bytes.
        self._kept: Deque[_Kept] = collections.deque()
        self._kept_bytes = 0
        #: Tag and bytes of a message that found no room.
        self._held_up: Optional["tuple[int, int]"] = None
        _forming.begin(self._start)

    def give(self, receive: _Receive) -> bool:
        """Gives a kept message to a receive, if one is for it."""
        for kept in self._kept:
            if kept.receive is None and receive.takes(self._source, kept.tag):
                kept.receive = receive
                if kept.is_complete:
                    self._hand_over(kept)
                return True
        return False

    def go_on(self) -> None:
        """Goes on after a message that found no room, if there is a receive for it now."""
        if self._held_up is not None:
            (tag, size), self._held_up = self._held_up, None
            self._guarded(lambda: self._content(tag, size))

    def _start(self) -> None:
        try:
            pair = self._mailbox.form(self._source)
        except Exception as error:
            self._fail(error)
            return
        with self._mailbox.lock:
            self._pair = pair
            self._guarded(self._await_header)

    def _guarded(self, step: Callable[[], None]) -> None:
        """Takes a step on a thread that nobody waits for: an exception there would be lost, and the receives would
        hang."""
        try:
            step()
        except Exception as error:
            self._fail(error)

    def _await_header(self) -> None:
        assert self._pair is not None
        self._pair.recv(self._header, 0, self._on_header)

    def _on_header(self, error: Optional[BaseException]) -> None:
        if error is not None:
            self._fail(error)
            return
        tag, size = self._header.tolist()
        if tag == _FAREWELL:
            self._fail(_native.CollectiveError(f"rank {self._source} has destroyed its process group"))
            return
        with self._mailbox.lock:
            self._guarded(lambda: self._content(tag, size))

    def _content(self, tag: int, size: int) -> None:
        """Receives the bytes of a message: into the tensor that waits for it, else to keep them."""
        receive = self._mailbox.take(self._source, tag)
        if receive is None and self._kept_bytes + size > _KEPT_MAX_BYTES and self._kept:
            self._held_up = tag, size
            return
        try:
            fits = receive is not None and receive.memory.nbytes == size
            memory = (
                bytes_in(receive.memory)  # type: ignore[union-attr]  # It fits, so there is a receive.
                if fits
                else torch.empty(size, dtype=torch.uint8, device="cpu")
            )
        except Exception as error:
            if receive is not None:
                receive.work.landed(error)
            raise
        kept = _Kept(tag, memory, receive)
        self._kept.append(kept)
        self._kept_bytes += size
        if not size:
            self._complete(kept)
        else:
            assert self._pair is not None
            self._pair.recv(memory, 0, lambda error: self._fail(error) if error else self._complete(kept))

    def _complete(self, kept: "_Kept") -> None:
        with self._mailbox.lock:
            kept.is_complete = True
            if kept.receive is None:
                kept.receive = self._mailbox.take(self._source, kept.tag)
            if kept.receive is not None:
                self._hand_over(kept)
            self._guarded(self._await_header)

    def _hand_over(self, kept: "_Kept") -> None:
        self._kept.remove(kept)
        self._kept_bytes -= kept.memory.nbytes
        receive = kept.receive
        assert receive is not None
        receive.work.source = self._source
        error: Optional[BaseException] = None
        if receive.memory.nbytes != kept.memory.nbytes:
            error = ValueError(
                f"rank {self._source} has sent {kept.memory.nbytes} bytes, the tensor that receives them has {receive.memory.nbytes}"
            )
        elif receive.memory.data_ptr() != kept.memory.data_ptr():
            bytes_in(receive.memory).copy_(kept.memory)
        receive.work.landed(error)
        self.go_on()

    def _fail(self, error: BaseException) -> None:
        with self._mailbox.lock:
            self.error, self._pair = error, None
            for kept in [kept for kept in self._kept if not kept.is_complete]:
                self._kept.remove(kept)
                if kept.receive is not None:
                    kept.receive.work.landed(error)
            self._mailbox.lost(self._source, error)


class _Kept:
    """A message that has begun to come in."""

    def __init__(self, tag: int, memory: torch.Tensor, receive: Optional[_Receive]) -> None:
        self.tag, self.memory, self.receive = tag, memory, receive
        self.is_complete = False


class _Forming:
    """Threads on which pairs form; the interpreter's exit waits for them."""

    def __init__(self) -> None:
        self._threads: List[threading.Thread] = []
        atexit.register(self._end)

    def begin(self, form: Callable[[], None]) -> None:
        thread = threading.Thread(target=form, name="elastic-pair", daemon=True)
        self._threads = [thread, *(other for other in self._threads if other.is_alive())]
        thread.start()

    def _end(self) -> None:
        _meeting.exits.set()
        for thread in self._threads:
            thread.join(_EXIT_WAIT_S)


_forming = _Forming()
