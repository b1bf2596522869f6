"""`State`: what survives the loss of a worker, and moves as one unit. Programs and `_object_state` derive from it, `_run` and
the session call it."""

from __future__ import annotations

from typing import TYPE_CHECKING, AbstractSet, Any, Callable, Generic, Iterable, List, Literal, Optional, Tuple, TypeVar

from . import _agreement, _codec, _context, _native

if TYPE_CHECKING:
    import typing_extensions

    #: Content of a state; `State` without it is one of any content.
    Content = typing_extensions.TypeVar("Content", default=Any)
else:
    Content = TypeVar("Content")

#: A content whose arrays on GPUs are still being copied: the header; the arrays; for each its name and whether each rank has
#: its own, nothing at all where names are not wanted; the numbers of those that are being copied; and what waits for them.
Captured = Tuple[
    bytes, List[Any], List[Optional[Tuple[_codec.Name, bool]]], List[int], Optional[Callable[[], None]]
]
#: A content in memory of its own: the header, and the arrays.
Copied = Tuple[bytes, List[bytes]]
#: What `State._alike` says; compared at the first commit of each generation.
_STATES = _agreement.Agreement(
    "the state at a commit",
    "Every rank commits at the same step, with samplers that have made the same progress: give batches() and "
    "record_batch() one batch size on all ranks, ShardedSampler one number of shards, and an optimizer its parameters "
    "in one order, as of model.parameters(): a set has another order in each process",
)

Result = TypeVar("Result")

_NO_CONTENT = (
    "{name} has no method {method}: a class that derives from State says what the state consists of, with capture and apply, "
    "in the place of Horovod's save, restore and sync; or derive from ObjectState, whose attributes are the state"
)


class State(Generic[Content]):
    """Training state that survives the loss of any worker, and moves as one unit.

    Derive from it, and say what it consists of: `capture` and `apply`. `ObjectState` does that for attributes,
    `elastic_node.torch.TorchState` for modules and optimisers.

    As Horovod does, `run` and `commit` call the methods `save`, `restore` and `sync` of a deriving class, for what it does
    beside the state's content: `save` before each commit, `restore` after a rollback on ranks that go on in their processes,
    and `sync` as each generation begins, on every rank. The content is saved, restored and taken over without them, and the
    base classes' methods of these names do nothing within such a call.
    """

    _session: Optional[_native.Session] = None
    _saved: Optional[Copied] = None
    #: Names of arrays of which each rank has its own.
    _per_rank: Tuple[str, ...] = ()
    #: Whether a method of a deriving class is called by `run` or `commit`.
    _is_in_own = False
    #: Whether the state was looked at for a commit of this generation.
    _has_committed = False

    def __init__(self) -> None:
        self._reset_callbacks: List[Callable[[], None]] = []

    def capture(self) -> Content:
        """Everything that must survive, as an object that pickle takes. Large arrays in it are not copied."""
        raise NotImplementedError(_NO_CONTENT.format(name=type(self).__name__, method="capture"))

    def apply(self, content: Content) -> None:
        """Takes the result of `capture`, here or on another rank. May keep the arrays in it."""
        raise NotImplementedError(_NO_CONTENT.format(name=type(self).__name__, method="apply"))

    def register_reset_callbacks(self, callbacks: Iterable[Callable[[], None]]) -> None:
        """Adds functions that are called, in order, whenever training goes on in a new generation: when the state
        and the new ranks are there, before the training function. On every rank, newcomers too."""
        self._reset_callbacks.extend(callbacks)

    def register_per_rank(self, *names: str) -> None:
        """Says that each rank has content of its own in these arrays, such as statistics of batch normalisation: they are not
        compared between ranks (`--on-divergence`). They are part of commits as all others.

        Args:
            names: the keys and attributes that lead to an array, or to what holds several: `"model.bn1"`.
        """
        self._per_rank = (*self._per_rank, *names)

    def on_reset(self) -> None:
        """Training goes on in a new generation."""
        self.reset()
        for callback in self._reset_callbacks:
            callback()

    def reset(self) -> None:
        """For deriving classes: adapt to the new world."""

    def commit(self) -> None:
        """Saves the state, to which training goes back after a loss, and lets a planned change of the world take
        effect. Every rank commits at the same step. Costs a copy of the state and no message, unless the world is about to
        change, or samplers and optimisers are compared: at the first commit of a generation. Tensors on a GPU are copied on
        it; their way to main memory goes on beside the next step. A process that dies before it ends has not made the
        commit.

        Raises:
            HostsUpdatedInterrupt: the world changes here; the commit is kept. Let it pass.
            ValueError: at the first commit of a generation: samplers have not made the same progress on all ranks, or
                optimisers have their parameters in another order, or arrays of an `ObjectState` share memory; nothing was
                committed.
            CollectiveError: the generation has ended; nothing was committed. Let it pass.
            RuntimeError: within `run`, on another thread than the one that called `init`; or between two steps of an
                `ElasticAccelerator` that accumulates gradients; nothing was committed.
        """
        session = self._session_here()
        _context.check_commit()
        if session is None:
            self.save()
        else:
            if not self._has_committed:
                self._check_parts()
                self._has_committed = True
            _STATES.check(None, self._alike)
            self._call_own("save")
            session.note_passes(self._passes())
            session.commit()

    def save(self) -> None:
        """Saves the state, without a look at the world. Every rank does at the same step, on the thread that called `init`.

        Raises:
            RuntimeError: as `commit`.
        """
        if self._is_in_own:
            return
        session = self._session_here()
        _context.check_commit()
        if session is not None:
            session.note_passes(self._passes())
            session.save()
        else:
            self._saved = self._copied()

    def restore(self) -> None:
        """Goes back to the last saved state. `run` does that by itself when a worker was lost."""
        if self._is_in_own:
            return
        session = self._session_here()
        if session is not None:
            session.restore()
        elif self._saved is not None:
            self._take(self._saved)

    def check_host_updates(self) -> None:
        """Lets a planned change of the world take effect, without a commit: live state is kept, without gradients. Every rank
        calls it at the same step.

        Raises:
            HostsUpdatedInterrupt, CollectiveError: as `commit`.
        """
        session = self._session_here()
        if session is not None:
            _context.check_look()
            session.check_host_updates()

    def sync(self) -> None:
        """Takes rank 0's state over, on every rank. `run` keeps states in step by itself.

        Raises:
            CollectiveError: a worker was lost, or the generation was aborted.
        """
        if self._is_in_own:
            return
        from ._objects import broadcast_object

        rank = _context.world().rank
        copied: Copied = broadcast_object(self._copied() if rank == 0 else None, root_rank=0)
        if rank != 0:
            self._take(copied)

    def _call_own(self, name: Literal["save", "restore", "sync"]) -> None:
        """Calls a method that a deriving class of the program has in the place of this package's."""
        own = getattr(type(self), name)
        if own.__module__.partition(".")[0] == __package__ or self._is_in_own:
            return
        self._is_in_own = True
        try:
            own(self)
        finally:
            self._is_in_own = False

    def _begin_run(self) -> None:
        """`run` begins: the state is as the program has made it, on every rank."""

    def _end_run(self) -> None:
        """`run` has ended."""

    def _forget_step(self) -> None:
        """Forgets what is left of a step and is no part of the state, such as gradients. Every rank calls it as a generation
        begins: a newcomer has none of it."""

    def _complete(self) -> None:
        """A generation begins, and the state is in step with all others: adds what the taken content does not have. Every rank
        calls it."""

    def _copied(self) -> Copied:
        header, buffers = self._capture()
        return header, [bytes(buffer) for buffer in buffers]

    def _take(self, copied: Copied) -> None:
        header, buffers = copied
        self._apply(header, [bytearray(buffer) for buffer in buffers])

    def _session_here(self) -> Optional[_native.Session]:
        """The session within `run`; outside of it there is none, and any thread may save."""
        if self._session is not None:
            _context.check_thread()
        return self._session

    def _passes(self) -> List[_native.Pass]:
        """The progress of the samplers in the state."""
        return []

    def _alike(self) -> List[_agreement.Item]:
        """What must be the same on all ranks, and is no part of the arrays that are compared."""
        return []

    def _capture(self) -> Tuple[bytes, List[Any]]:
        """The content as a header and arrays, all of which have their bytes."""
        return self._encoded(self.capture(), lambda content: _codec.encode(content, self._in_place(content)))

    def _capture_begun(self, is_named: bool) -> Captured:
        """The content for a commit. Arrays on a GPU are still being copied; the program may change them from here on."""
        encoded = self._encoded(
            self.capture(), lambda content: _codec.begin_encoding(content, self._in_place(content), is_named)
        )
        names = [name and (name, self._is_per_rank(name[0])) for name in encoded.names]
        wait = None if encoded.copies is None else encoded.copies.wait
        return encoded.header, encoded.buffers, names, encoded.late, wait

    def _encoded(self, content: Content, encode: Callable[[Content], Result]) -> Result:
        """The result of `encode` for captured content, or for what is captured in its place where pickle does not take that."""
        try:
            with _codec.blaming(content):
                return encode(content)
        except Exception:
            if not self._captures_otherwise(content):
                raise
        content = self.capture()
        with _codec.blaming(content):
            return encode(content)

    def _check_encodable(self) -> None:
        """Raises, before any other rank waits for this one, what each commit would raise for this state."""
        try:
            content = self.capture()
        except Exception:
            # A newcomer may have nothing to capture before it has taken the state of others.
            return
        self._encoded(content, _codec.encode)

    def _check_parts(self) -> None:
        """Raises, at the first commit of a generation, for what would be wrong after the state is taken over."""

    def _captures_otherwise(self, content: Content) -> bool:
        """Whether `capture` gives something else from now on, since this content cannot be encoded."""
        return False

    def _is_per_rank(self, array: str) -> bool:
        return any(array == name or array.startswith(f"{name}.") for name in self._per_rank)

    def _in_place(self, content: Content) -> AbstractSet[int]:
        """The tensors of captured content that memory of the state can take, by the identity of their objects."""
        return frozenset()

    def _apply(self, header: bytes, buffers: List[bytearray]) -> None:
        self.apply(_codec.decode(header, buffers))

    def _apply_blocks(self, header: bytes, blocks: List[_native.CommitBlock]) -> None:
        """Takes a commit's content."""
        self._apply(header, [block.copy() for block in blocks])
