"""`ObjectState`: a state in attributes. Programs make it, `torch.TorchState` and the integrations derive from it."""

from __future__ import annotations

import logging
from typing import Any, Callable, Dict, FrozenSet, List, Tuple

from . import _agreement, _codec, _context, _holders, _jax_trees, _module_settings, _native, _overlaps, _torch_tensors
from ._sampler import ElasticSampler, EpochOrder
from ._state import Copied, State

_NEEDS_TORCH_STATE = (
    "{name!r} in the state is or has {what} of torch ({kind}), with which {state} would go on wrong after a loss, by gradients of the "
    "step that was broken off or by moments in another type: give it to elastic_node.torch.elastic.TorchState"
)

_NO_SHAPE_YET = (
    "{part} in the state has no shape yet, since its module is a lazy one ({kind}): a rank could not take it over. Call the module with "
    "a batch of the right shape before elastic_node.elastic.run, on every rank; the values are rank 0's"
)

_SHARED_MEMORY = (
    "{one} and {other} in the state share memory: each rank that takes the state over, or goes back to a commit, gets a copy of each, "
    "and no longer sees in one of them what is written to the other. Keep one of them in the state, the array of which the other is a "
    "view, and make the view anew at the beginning of the training function, outside of the state (a variable, or an attribute whose "
    "name begins with an underscore); or give the state copies. What never changes belongs outside of the state, or is made read-only (numpy: array.setflags(write=False))"
)


def _is_own_method(kind: type, name: str) -> bool:
    """Whether a class has a method of that name from this package."""
    own = (vars(base) for base in kind.__mro__ if base.__module__.partition(".")[0] == __package__)
    return any(callable(attributes.get(name)) for attributes in own)


class ObjectState(State[Dict[str, Any]]):
    """State in attributes: `ObjectState(epoch=0, weights=array)` has `state.epoch` and `state.weights`.

    A value with `state_dict` and `load_state_dict`, such as an `ElasticSampler` or a torch module, stays the same
    object, also in a list, a tuple or a dictionary. Gradients of a torch module become `None` when the state goes back, is taken over,
    or goes on in a new generation. Its mode, training or evaluation, the momenta of its normalisations, and which of its parameters are
    frozen (`requires_grad`) go back to those of the last commit, or checkpoint. An optimiser of torch, and a gradient scaler, are refused: `elastic_node.torch.TorchState` takes them. Any other value
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
        ValueError: an attribute has the name of a method, such as `commit`. From `run`: a lazy module of torch has seen no batch. From
            `run`, and from the first commit of a generation: arrays in the state share memory.
        TypeError: from `run`, and from the first commit of a generation: the state has an optimiser or a gradient scaler of torch, and
            is no `TorchState`.
    """

    #: The attributes of which the leaves alone are saved.
    _trees: FrozenSet[str] = frozenset()
    #: The attributes that the program has given the state before `run`; empty outside of it.
    _given: FrozenSet[str] = frozenset()
    #: Those of them that the content which was taken last does not have.
    _lacking: FrozenSet[str] = frozenset()
    #: Parameters of torch that the content which was taken last has frozen, or not, unlike the module had.
    _frozen_otherwise: List[str]
    #: Whether a generation has begun in this process.
    _has_begun = False
    #: The attributes that are given another value before each commit, and are not written to in between.
    _given_at_commits: Tuple[str, ...] = ()

    def __init__(self, bcast_object: object = None, get_rank: object = None, **kwargs: object) -> None:
        # The first two parameters are those of Horovod's class; this one does not use them.
        super().__init__()
        self._frozen_otherwise = []
        for name, value in kwargs.items():
            if _is_own_method(type(self), name):
                raise ValueError(f"an attribute of the state cannot be named {name!r}: the state has a method of that name")
            setattr(self, name, value)

    def capture(self) -> Dict[str, Any]:
        content = {name: self._captured(name, self.__dict__[name]) for name in self._public()}
        found = [(name, _module_settings.of(module)) for name, module in self._modules()]
        if found:
            content.update((key, [(name, settings[key]) for name, settings in found]) for key in _module_settings.KEYS)
        return content

    def _captured(self, name: str, value: Any) -> Any:
        if name in self._trees and _jax_trees.has_arrays(value):
            return _jax_trees.leaves_of(value)
        return self._content_of(value) if self._is_holder(value) else _holders.captured(value, self)

    def _check_encodable(self) -> None:
        self._refuse_steppers()
        self._refuse_lazy()
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

    def _refuse_lazy(self) -> None:
        """Refuses torch's lazy modules that have not seen a batch."""
        for attribute, module in self._modules():
            for name, part in module.named_modules():
                lazy = _torch_tensors.lazy_tensor_of(part)
                if lazy is not None:
                    path = ".".join(filter(None, (attribute, name, lazy)))
                    raise ValueError(_NO_SHAPE_YET.format(part=repr(path), kind=type(part).__name__))

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
        # A validation that was broken off has left modules in evaluation mode, `update_bn` normalisations without a momentum, and a
        # newcomer has not frozen what others have.
        settings = {key: content.get(key, []) for key in _module_settings.KEYS}
        content = {name: value for name, value in content.items() if name not in _module_settings.KEYS}
        self._take_values(content)
        self._lacking = self._given.difference(content)
        for name in set(self._public()).difference(content, self._lacking):
            # It was added after the commit, or by this rank alone.
            delattr(self, name)
        for place, (name, module) in enumerate(self._modules()):
            of_module = {key: saved[place] for key, saved in settings.items() if place < len(saved)}
            saved = {key: value for key, (saved_name, value) in of_module.items() if saved_name == name}
            changed = _module_settings.give(module, saved)
            self._frozen_otherwise.extend(f"{name}.{parameter}" for parameter in changed)
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
        self._frozen_otherwise, self._has_begun = [], False

    def _end_run(self) -> None:
        self._given = frozenset()

    def _complete(self) -> None:
        """Gives the attributes that a loaded checkpoint does not have rank 0's values, and saves them: the program may hold these
        objects, and trains with them."""
        self._tell_frozen_otherwise()
        # A rank that has kept its live state, in which the program has deleted one, comes to the same as those that took it over.
        lacks = self._lacking.union(self._given.difference(self._public()))
        self._lacking = frozenset()
        from ._objects import allgather_object, broadcast_object

        # One that was given on this rank alone is known to no other rank.
        world = _context.world()
        own_parts = sorted(lacks), [name for name, sampler in self._samplers() if sampler.repeats]
        of_ranks = allgather_object(own_parts) if world.size > 1 else [own_parts]
        for name, sampler in self._samplers():
            sampler.repeats = any(name in repeating for _, repeating in of_ranks)
        lacking = lacks.union(*(names for names, _ in of_ranks))
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

    def _tell_frozen_otherwise(self) -> None:
        """Warns, as a job begins from a checkpoint, of parameters that the program has frozen, or not, unlike the checkpoint."""
        has_begun, self._has_begun = self._has_begun, True
        otherwise, self._frozen_otherwise = self._frozen_otherwise, []
        # A newcomer to a job that trains takes over what others have done since.
        if otherwise and not has_begun and _context.world().rank == 0:
            warning = (
                "which parameters are frozen (requires_grad) is part of the state that training goes on from, and differs from what the "
                "program has set for %d of them, such as %s: set it within the training function where the program decides"
            )
            logging.getLogger(__name__).warning(warning, len(otherwise), otherwise[0])

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
