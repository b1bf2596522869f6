"""Elastic training in process: the run loop, the state that survives, the sampler. With Horovod's names. Programs use
it."""

from __future__ import annotations

import functools
import inspect
import logging
import traceback
from typing import TYPE_CHECKING, AbstractSet, Any, Callable, Dict, FrozenSet, Generic, Iterable, List, Literal, Optional, Set, Tuple, TypeVar

from . import _agreement, _codec, _context, _holders, _jax_trees, _modes, _native, _overlaps, _torch_tensors
from ._native import CollectiveError, HostsUpdatedInterrupt
from ._sampler import Batch, ElasticSampler, EpochOrder
from ._shards import DataShard, ShardedSampler, ShardedStep

if TYPE_CHECKING:
    import typing_extensions
    from typing_extensions import Concatenate, ParamSpec

    Arguments = ParamSpec("Arguments")
    #: Content of a state; `State` without it is one of any content.
    Content = typing_extensions.TypeVar("Content", default=Any)
else:
    Content = TypeVar("Content")

__all__ = [
    "Batch",
    "CollectiveError",
    "DataShard",
    "ElasticSampler",
    "HostsUpdatedInterrupt",
    "ObjectState",
    "ShardedSampler",
    "ShardedStep",
    "State",
    "run",
]

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
AnyState = TypeVar("AnyState", bound="State")


def run(
    func: Callable[Concatenate[AnyState, Arguments], Result],
) -> Callable[Concatenate[AnyState, Arguments], Result]:
    """Makes a training function elastic: `train(state, …)` is called in every generation that this worker takes part
    in, until it has returned on every rank, or this worker is told to leave.

    Before each call the ranks are new, and the state is in step with all others. When a worker is lost, the
    collectives in it raise `CollectiveError`, and the state goes back to the last commit; when the world changes as
    planned, a commit raises `HostsUpdatedInterrupt`, and live state is kept. Let both pass. So it begins where the
    state says, not at the beginning, and without gradients of torch's modules and optimisers in the state. To return is
    to commit: every rank returns after the same step. If one returns while others go on, the generation ends, and
    training goes on from the state that it returned with.

    The first argument is a `State`. Returns what the function returned last. The code after that in the program runs
    on the ranks that have trained to the end, and on no others. A worker that was told to leave before, or that came
    when training had ended, ends here, as does every worker of a job that is stopped.

    Raises:
        Exception: what the function raised of its own.
        SystemExit: this worker has no part in the job any more, and holds no state that was trained to the end. Its code is 0.
        ElasticError: the job failed, or the driver is gone.
        RuntimeError: another thread calls it than the one that called `init`.
        TypeError, AttributeError, pickle.PicklingError: the state has something that pickle does not take. It is looked for
            before training, too.
        ValueError: arrays of an `ObjectState` share memory, of which each rank that takes the state over would get copies.
        TypeError: the first argument is no `State`; `func` is a coroutine function or a generator function, or returns what
            such a function does: it would not have trained.
    """
    _check_trains(func)

    @functools.wraps(func)
    def train(state: AnyState, *args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
        if not isinstance(state, State):
            raise TypeError(f"the first argument must be a State, not {type(state).__name__}")
        session = _context.begin_run(state)
        state._session = session
        results: List[Result] = []
        is_back = False
        try:
            state._check_encodable()
            state._begin_run()
            while True:
                goes_on = session.enter()
                if goes_on is None:
                    _context.ended()
                    if not session.has_finished:
                        raise SystemExit(0)
                    return results[-1]
                _context.entered(session)
                state._has_committed = False
                raised: Optional[BaseException] = None
                try:
                    # Ranks that have kept their live state have gradients, and a newcomer has none.
                    state._forget_step()
                    state._complete()
                    if is_back:
                        state._call_own("restore")
                    if goes_on:
                        state.on_reset()
                    state._call_own("sync")
                    results = [_trained(func, func(state, *args, **kwargs))]
                except BaseException as error:
                    raised = _context.uncovered(error)
                    _free_frames(raised)
                _context.check_process(raised)
                _context.leaving()
                session.conclude(raised)
                is_back = isinstance(raised, CollectiveError)
                del raised
        finally:
            state._session = None
            state._end_run()
            _context.end_run()

    return train  # type: ignore[return-value]  # Its first argument may be given by its name, too.


def _free_frames(error: Optional[BaseException]) -> None:
    """Frees what a training function held that the end of its generation broke off, such as a replica with hooks on the
    parameters, or a loader with processes. A handle of an operation keeps its error, and with it these frames, in a cycle."""
    if not isinstance(error, (CollectiveError, HostsUpdatedInterrupt)):
        return
    seen: Set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        traceback.clear_frames(error.__traceback__)
        error = error.__cause__ or error.__context__


def _check_trains(func: Any) -> None:
    """Refuses a function whose call does not run its body."""
    # The second one is for objects that are called as functions are.
    for called in (func, type(func).__call__):
        if inspect.iscoroutinefunction(called):
            raise _not_run(func, "is a coroutine function")
        if inspect.isgeneratorfunction(called):
            raise _not_run(func, "is a generator function")
        if inspect.isasyncgenfunction(called):
            raise _not_run(func, "is an asynchronous generator function")


def _trained(func: Any, result: Result) -> Result:
    """What a training function has returned."""
    if inspect.iscoroutine(result):
        result.close()
        raise _not_run(func, "has returned a coroutine")
    if inspect.isgenerator(result):
        result.close()
        raise _not_run(func, "has returned a generator")
    if inspect.isasyncgen(result):
        # It has not begun, so there is nothing to close.
        raise _not_run(func, "has returned an asynchronous generator")
    return result


def _not_run(func: Any, what: str) -> TypeError:
    while isinstance(func, functools.partial):
        func = func.func
    name = getattr(func, "__qualname__", type(func).__qualname__)
    return TypeError(
        f"elastic_node.elastic.run: {name} {what}, whose body does not run by the call: give a function that trains before it "
        "returns, with asyncio.run(…) or the loop over the generator in it"
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


#: Key of the modes of torch's modules in a content. No attribute of a state has it, or the next one: it would be part of the content.
_MODES = "_module_modes"
#: Key of the momenta of their normalisations.
_MOMENTA = "_module_momenta"

_NEEDS_TORCH_STATE = (
    "{name!r} in the state is or has {what} of torch ({kind}), with which {state} would go on wrong after a loss, by gradients of the "
    "step that was broken off or by moments in another type: give it to elastic_node.torch.elastic.TorchState"
)

_SHARED_MEMORY = (
    "{one} and {other} in the state share memory: each rank that takes the state over, or goes back to a commit, gets a copy of each, "
    "and no longer sees in one of them what is written to the other. Keep one of them in the state, the array of which the other is a "
    "view, and make the view anew at the beginning of the training function, outside of the state (a variable, or an attribute whose "
    "name begins with an underscore); or give the state copies. What never changes belongs outside of the state, or is made read-only (numpy: array.setflags(write=False))"
)

_NO_CONTENT = (
    "{name} has no method {method}: a class that derives from State says what the state consists of, with capture and apply, "
    "in the place of Horovod's save, restore and sync; or derive from ObjectState, whose attributes are the state"
)


def _is_own_method(kind: type, name: str) -> bool:
    """Whether a class has a method of that name from this package."""
    own = (vars(base) for base in kind.__mro__ if base.__module__.partition(".")[0] == __package__)
    return any(callable(attributes.get(name)) for attributes in own)


class ObjectState(State[Dict[str, Any]]):
    """State in attributes: `ObjectState(epoch=0, weights=array)` has `state.epoch` and `state.weights`.

    A value with `state_dict` and `load_state_dict`, such as an `ElasticSampler` or a torch module, stays the same
    object, also in a list, a tuple or a dictionary. Gradients of a torch module become `None` when the state goes back, is taken over,
    or goes on in a new generation. Its mode, training or evaluation, and the momenta of its normalisations go back to those of the
    last commit. An optimiser of torch, and a gradient scaler, are refused: `elastic_node.torch.TorchState` takes them. Any other value
    is replaced when the state goes back or is taken over, so always reach it through the state. Changes inside of a list or an array are saved as assignments are. Arrays of JAX, also in trees of them,
    come back on the devices where the attribute had them if the program chose these, else on the default device.

    Attributes that are added later are part of the state, unless their name begins with an underscore. One that is added after the
    last commit is removed when the state goes back to it. One that the program gives the state before `run`, and that a loaded
    checkpoint does not have, since an earlier version of the program saved it, begins with rank 0's value, with a warning.

    A tree of JAX that pickle does not take, since there are functions in it, such as flax's `TrainState` or a module of equinox,
    is saved by its leaves, arrays and numbers. Its structure, with all that is no leaf, is the one that this rank has there;
    functions among the leaves stay, too. Every rank makes such a tree before `run`, with the same leaves.

    Arrays that are views of each other would be parted by a copy of the state, so they are refused. Keep the whole array in the state,
    and make views of it at the beginning of the training function.

    For type checkers, derive from it and annotate them; that class is made in the same way::

        class Training(ObjectState):
            epoch: int
            weights: NDArray[numpy.float32]

    Args:
        bcast_object, get_rank: for Horovod's sake.
        kwargs: the attributes; pickle takes their values.

    Raises:
        ValueError: an attribute has the name of a method, such as `commit`. From `run`, and from the first commit of a generation:
            arrays in the state share memory.
        TypeError: from `run`, and from the first commit of a generation: the state has an optimiser or a gradient scaler of torch, and
            is no `TorchState`.
    """

    #: The attributes of which the leaves alone are saved.
    _trees: FrozenSet[str] = frozenset()
    #: The attributes that the program has given the state before `run`; empty outside of it.
    _given: FrozenSet[str] = frozenset()
    #: Those of them that the content which was taken last does not have.
    _lacking: FrozenSet[str] = frozenset()
    #: The attributes that are given another value before each commit, and are not written to in between.
    _given_at_commits: Tuple[str, ...] = ()

    def __init__(self, bcast_object: object = None, get_rank: object = None, **kwargs: object) -> None:
        # The first two parameters are those of Horovod's class; this one does not use them.
        super().__init__()
        for name, value in kwargs.items():
            if _is_own_method(type(self), name):
                raise ValueError(f"an attribute of the state cannot be named {name!r}: the state has a method of that name")
            setattr(self, name, value)

    def capture(self) -> Dict[str, Any]:
        content = {name: self._captured(name, self.__dict__[name]) for name in self._public()}
        found = [(name, _modes.of(module)) for name, module in self._modules()]
        if found:
            content[_MODES] = [(name, modes) for name, (modes, _) in found]
        if any(momenta for _, (_, momenta) in found):
            content[_MOMENTA] = [(name, momenta) for name, (_, momenta) in found]
        return content

    def _captured(self, name: str, value: Any) -> Any:
        if name in self._trees and _jax_trees.has_arrays(value):
            return _jax_trees.leaves_of(value)
        return self._content_of(value) if self._is_holder(value) else _holders.captured(value, self)

    def _check_encodable(self) -> None:
        self._refuse_steppers()
        super()._check_encodable()
        self._check_copies()
        self._refuse_shared(True)

    def _check_copies(self) -> None:
        """Raises, before training, for parts of which each rank would train a copy."""

    def _check_parts(self) -> None:
        self._refuse_steppers()
        self._refuse_shared(False)

    def _refuse_steppers(self) -> None:
        """Refuses torch's optimisers and gradient scalers. A class that knows what a broken step leaves in them takes them."""
        for name in self._public():
            for found in _holders.found({name: self.__dict__[name]}, _torch_tensors.is_stepper):
                what = "an optimiser" if _torch_tensors.is_optimizer(found) else "a gradient scaler"
                kind, state = type(found).__name__, type(self).__name__
                raise TypeError(_NEEDS_TORCH_STATE.format(name=name, what=what, kind=kind, state=state))

    def _refuse_shared(self, has_holders: bool) -> None:
        """Refuses arrays that share memory.

        Args:
            has_holders: whether those of objects that stay are looked at, too.
        """
        try:
            parts = self._array_parts(has_holders)
        except Exception:
            # Each commit says what is wrong with it.
            return
        found = _overlaps.first_shared(parts)
        if found is not None:
            one, other = (repr(part.name) for part in found)
            raise ValueError(_SHARED_MEMORY.format(one=one, other=other if other != one else f"another array of {one}"))

    def _array_parts(self, has_holders: bool) -> List[_overlaps.Part]:
        parts: List[_overlaps.Part] = []

        def note(attribute: str, content: Any, stays: bool) -> None:
            names = _codec.names_of_arrays(content, attribute)
            for array in _codec.arrays_in(content):
                name = names[id(array)][0] if id(array) in names else attribute
                parts.append(_overlaps.Part(attribute, name, array, stays))

        for attribute in set(self._public()).difference(self._given_at_commits):
            value = self.__dict__[attribute]
            stays = self._stays(value, value)
            if stays and not has_holders:
                continue
            content = self._captured(attribute, value)
            note(attribute, content, stays)
            for held in _holders.found(content, lambda part: isinstance(part, _holders.HeldContent)) if has_holders else ():
                note(attribute, held.content, True)
        return sorted(parts, key=lambda part: part.name)

    def _captures_otherwise(self, content: Dict[str, Any]) -> bool:
        own = {name: self.__dict__.get(name) for name in set(content).difference(self._trees)}
        trees = {name for name, value in own.items() if _jax_trees.has_arrays(value) and not _codec.is_encodable(content[name])}
        self._trees = self._trees.union(trees)
        return bool(trees)

    def apply(self, content: Dict[str, Any]) -> None:
        # Commits of earlier releases have no modes, or no momenta.
        # A validation that was broken off has left modules in evaluation mode, `update_bn` normalisations without a momentum, and a
        # newcomer has not frozen what others have.
        of_modules: List[Tuple[List[Any], Callable[[Any, Any], None]]] = [
            (content.get(_MODES, []), _modes.give),
            (content.get(_MOMENTA, []), _modes.give_momenta),
        ]
        content = {name: value for name, value in content.items() if name not in (_MODES, _MOMENTA)}
        self._take_values(content)
        self._lacking = self._given.difference(content)
        for name in set(self._public()).difference(content, self._lacking):
            # It was added after the commit, or by this rank alone.
            delattr(self, name)
        modules = self._modules()
        for saved_parts, give in of_modules:
            for (name, module), (saved_name, saved) in zip(modules, saved_parts):
                if name == saved_name:
                    give(module, saved)
        # A step that was broken off has left gradients. The next backward pass would add to them.
        self._forget_step()

    def _forget_step(self) -> None:
        for _, module in self._modules():
            _torch_tensors.drop_gradients(module.parameters())

    def _modules(self) -> List[Tuple[str, Any]]:
        """torch's modules in the state, each with the name of the attribute that has it."""
        return [
            (name, module)
            for name in self._public()
            for module in _holders.found({name: self.__dict__[name]}, _torch_tensors.is_module)
        ]

    def _begin_run(self) -> None:
        self._given, self._lacking = frozenset(self._public()), frozenset()

    def _end_run(self) -> None:
        self._given = frozenset()

    def _complete(self) -> None:
        """Gives the attributes that a loaded checkpoint does not have rank 0's values, and saves them: the program may hold these
        objects, and trains with them."""
        # A rank that has kept its live state, in which the program has deleted one, comes to the same as those that took it over.
        lacks = self._lacking.union(self._given.difference(self._public()))
        self._lacking = frozenset()
        from ._objects import allgather_object, broadcast_object

        # One that was given on this rank alone is known to no other rank.
        world = _context.world()
        lacking = lacks.union(*allgather_object(sorted(lacks))) if world.size > 1 else lacks
        if not lacking:
            return
        is_root = world.rank == 0
        own = {name: self._captured(name, self.__dict__[name]) for name in lacking if name in self.__dict__}
        header, buffers = self._encoded(own, _codec.encode)
        copied: Copied = broadcast_object((header, [bytes(buffer) for buffer in buffers]) if is_root else None)
        if not is_root:
            self._take_values(own := _codec.decode(copied[0], [bytearray(buffer) for buffer in copied[1]]))
        for name in lacking.difference(own):
            self.__dict__.pop(name, None)
        if is_root and own:
            warning = (
                "the state that training goes on from has no %s, as when an earlier version of the program saved it: "
                "training begins with the value that this one gives on rank 0"
            )
            logging.getLogger(__name__).warning(warning, ", ".join(map(repr, sorted(own))))
        if own:
            self.save()

    def _take_values(self, content: Dict[str, Any]) -> None:
        for name, value in content.items():
            holder: Any = self.__dict__.get(name)
            if isinstance(value, _jax_trees.TreeLeaves):
                setattr(self, name, _jax_trees.with_leaves(holder, value, name))
            elif self._stays(holder, value):
                self._give(holder, value)
            else:
                setattr(self, name, _holders.given(holder, value, self, name))

    def _public(self) -> List[str]:
        return sorted(name for name in self.__dict__ if not name.startswith("_"))

    def _is_holder(self, value: Any) -> bool:
        """Whether a value stays the object that it is, and is given its content."""
        loads = callable(getattr(value, "load_state_dict", None)) and callable(getattr(value, "state_dict", None))
        return loads and not isinstance(value, type)

    def _stays(self, value: Any, content: Any) -> bool:
        """Whether the value of an attribute stays the object that it is, and is given this content."""
        return self._is_holder(value)

    def _content_of(self, holder: Any) -> Any:
        return holder.state_dict()

    def _give(self, holder: Any, content: Any) -> None:
        holder.load_state_dict(content)

    def _passes(self) -> List[_native.Pass]:
        return [sampler.data_pass(name) for name, sampler in self._samplers()]

    def _alike(self) -> List[_agreement.Item]:
        return [(name, sampler.progress()) for name, sampler in self._samplers()]

    def _samplers(self) -> List[Tuple[str, EpochOrder]]:
        return [(name, value) for name, value in sorted(self.__dict__.items()) if isinstance(value, EpochOrder)]

    def reset(self) -> None:
        for value in list(self.__dict__.values()):
            if isinstance(value, ElasticSampler):
                value.reset()
