"""Content given to optimisers and learning-rate schedulers. What a program may hold of them stays the objects that they are: the list
of groups, the groups, the states of parameters, and the tensors in them. torch's `load_state_dict` makes new ones."""

from __future__ import annotations

import contextlib
import functools
from collections import Counter, OrderedDict, defaultdict
from typing import AbstractSet, Any, Dict, List, NamedTuple, Optional

import torch

from .. import _holders
from ._optimizer import parameters_of

#: Most levels of dictionaries and lists that stay the same objects: a state of LBFGS has four.
_DEPTH_MAX = 8

#: Most optimisers or schedulers within one another.
_PARTS_MAX = 64

#: The key of the contents of optimisers within one, beside torch's own.
_INNER = "inner_optimizers"

#: Most names of values in a message.
_KEYS_MAX = 4

_DICTIONARIES = (dict, OrderedDict, defaultdict, Counter)

#: The objects that have been given content, by their identity or their memory. They stay alive so that no other object gets one's
#: identity.
_Taken = Dict[int, Any]


def content_of(optimizer: torch.optim.Optimizer, others: AbstractSet[int] = frozenset()) -> Any:
    """An optimiser's `state_dict()`, and those of optimisers within it that torch's own leaves out, as of SAM.

    Args:
        others: optimisers whose content is saved beside it, by the identity of their objects.
    """
    content: Any = optimizer.state_dict()
    inner = [None if id(part) in others else part.state_dict() for part in _left_out(optimizer)]
    return {**content, _INNER: inner} if any(part is not None for part in inner) else content


def give_optimizer(optimizer: torch.optim.Optimizer, content: Any) -> None:
    """Gives an optimiser the result of `content_of` as it was saved, in the objects that it has. torch itself casts all
    floating-point tensors in it to their parameter's type, and so moments in float32 of parameters in bfloat16."""
    inner: List[Any] = []
    if isinstance(content, dict) and _INNER in content:
        inner = content[_INNER]
        content = {name: value for name, value in content.items() if name != _INNER}
    _give_outer(optimizer, content)
    for part, of_part in zip(_left_out(optimizer), inner):
        if of_part is not None:
            _give_outer(part, of_part)


def check_complete(name: str, optimizer: torch.optim.Optimizer) -> None:
    """Looks whether an optimiser around others, with a `state_dict` of its own, leaves out tensors of their state.

    Args:
        name: of the attribute that has it.

    Raises:
        TypeError: it does.
    """
    parts = with_inner(optimizer)
    if len(parts) == 1 or _has_torchs_state_dict(optimizer):
        return
    try:
        content = optimizer.state_dict()
    except Exception:
        # Each commit says so, where it is not only too early.
        return
    due = {
        (id(parameter), key)
        for part in parts
        for parameter, values in part.state.items()
        if isinstance(values, dict)
        for key, value in values.items()
        if isinstance(value, torch.Tensor)
    }
    if sum(1 for _ in _holders.found(content, lambda value: isinstance(value, torch.Tensor))) < len(due):
        kinds = ", ".join(type(part).__name__ for part in parts[1:])
        keys = ", ".join(sorted({str(key) for _, key in due})[:_KEYS_MAX])
        raise TypeError(
            f"{name!r} in the state is an optimiser ({type(optimizer).__name__}) around another one ({kinds}), and its state_dict() leaves "
            f"out a part of what they keep ({keys}): that would not go back with the state, and a new rank would not have it. Give the "
            "class a state_dict and a load_state_dict that take all of it, or leave torch's own, to which optimisers within are added"
        )


def _has_torchs_state_dict(optimizer: torch.optim.Optimizer) -> bool:
    """Whether its `state_dict` is torch's own, which has its groups and its state, and no other optimiser's."""
    return type(optimizer).state_dict is torch.optim.Optimizer.state_dict


def _left_out(optimizer: torch.optim.Optimizer) -> List[torch.optim.Optimizer]:
    """The optimisers within one whose state is not in its `state_dict()`."""
    if not _has_torchs_state_dict(optimizer):
        return []
    left_out: List[torch.optim.Optimizer] = []
    for part in with_inner(optimizer)[1:]:
        if all(part.state is not other.state for other in (optimizer, *left_out)):
            left_out.append(part)
    return left_out


def _give_outer(optimizer: torch.optim.Optimizer, content: Any) -> None:
    held = [_Held(part, part.param_groups, list(part.param_groups), part.state) for part in with_inner(optimizer)]
    settled: List[torch.optim.Optimizer] = []

    def settle(of: _Held, _: Optional[torch.optim.Optimizer] = None) -> None:
        settled.append(of.optimizer)
        if of.optimizer is optimizer or of.optimizer.state is optimizer.state:
            _take_saved_types(of.optimizer, content)
        _settle(of)

    with contextlib.ExitStack() as hooks:
        for of in held:
            # A class that derives from another one, or wraps it, may share the groups with others after the load proper.
            if hasattr(of.optimizer, "_optimizer_load_state_dict_post_hooks"):
                hook = of.optimizer.register_load_state_dict_post_hook(functools.partial(settle, of), prepend=True)
                hooks.callback(hook.remove)
        optimizer.load_state_dict(content)
    if not settled and len(held) == 1:
        # A class with a `load_state_dict` of its own.
        settle(held[0])


def give_scheduler(scheduler: torch.optim.lr_scheduler.LRScheduler, content: Dict[str, Any]) -> None:
    """Loads a scheduler's `state_dict()`, into the lists and dictionaries that it has."""
    held = [(part, dict(vars(part))) for part in _nested(scheduler, torch.optim.lr_scheduler.LRScheduler)]
    scheduler.load_state_dict(content)
    taken: _Taken = {}
    for part, before in held:
        attributes = vars(part)
        attributes.update({name: kept(before.get(name), given, taken) for name, given in attributes.items()})


def with_inner(optimizer: torch.optim.Optimizer) -> List[torch.optim.Optimizer]:
    """An optimiser, and those that it has as attributes."""
    return _nested(optimizer, torch.optim.Optimizer)


def kept(own: Any, given: Any, taken: _Taken, depth: int = 0) -> Any:
    """The content that was given, in the object `own` where that can take it."""
    if own is given or type(own) is not type(given) or depth > _DEPTH_MAX:
        return given
    if isinstance(own, torch.Tensor):
        return _kept_tensor(own, given, taken)
    if id(own) in taken or type(own) not in (list, *_DICTIONARIES):
        return given
    taken[id(own)] = own
    if isinstance(own, list):
        beside = [*own, *[None] * len(given)]
        own[:] = [kept(old, new, taken, depth + 1) for old, new in zip(beside, given)]
    else:
        values = {key: kept(own.get(key), value, taken, depth + 1) for key, value in given.items()}
        own.clear()
        own.update(values)
    return own


class _Held(NamedTuple):
    """The objects of an optimiser that a program may hold."""

    optimizer: torch.optim.Optimizer
    list_of_groups: List[Dict[str, Any]]
    groups: List[Dict[str, Any]]
    state: Any


def _settle(held: _Held) -> None:
    """Moves what an optimiser has loaded into the objects that it had before."""
    optimizer = held.optimizer
    taken: _Taken = {}
    loaded, state = optimizer.param_groups, optimizer.state
    # A class may show the groups and the state of another optimiser, and not let them be set.
    with contextlib.suppress(AttributeError):
        if loaded is not held.list_of_groups:
            beside: List[Optional[Dict[str, Any]]] = [*held.groups, *[None] * len(loaded)]
            held.list_of_groups[:] = [kept(own, given, taken) for own, given in zip(beside, loaded)]
            optimizer.param_groups = held.list_of_groups
        if state is not held.state:
            optimizer.state = kept(held.state, state, taken)


def _kept_tensor(own: torch.Tensor, given: torch.Tensor, taken: _Taken) -> torch.Tensor:
    if not _fits(own, given):
        return given
    # A learning rate as a tensor may be one object for several groups, and have other values in those of the content.
    if own.data_ptr() in taken:
        return own if torch.equal(own, given) else given
    taken[own.data_ptr()] = own
    with torch.no_grad():
        own.copy_(given)
    return own


def _fits(own: torch.Tensor, given: torch.Tensor) -> bool:
    return (
        type(own) in (torch.Tensor, torch.nn.Parameter)
        and (own.shape, own.dtype, own.device, own.requires_grad) == (given.shape, given.dtype, given.device, given.requires_grad)
        and own.layout == given.layout == torch.strided
        and own.device.type != "meta"
        and not own.is_quantized
        and not own.is_inference()
        # An expanded tensor has one element in several places.
        and all(stride or size <= 1 for size, stride in zip(own.shape, own.stride()))
    )


def _take_saved_types(optimizer: torch.optim.Optimizer, content: Any) -> None:
    groups, states = (content.get(name) if isinstance(content, dict) else None for name in ("param_groups", "state"))
    if not isinstance(groups, list) or not isinstance(states, dict):
        # The content of a class with a `state_dict` of its own.
        return
    numbers = [number for group in groups for number in group["params"]]
    for parameter, number in zip(parameters_of(optimizer.param_groups), numbers):
        own, saved = optimizer.state.get(parameter), states.get(number)
        if isinstance(own, dict) and isinstance(saved, dict):
            for name in own.keys() & saved.keys():
                own[name] = _as_saved(own[name], saved[name])


def _as_saved(loaded: Any, saved: Any) -> Any:
    """A value of an optimiser's state, with the types that its tensors were saved with."""
    if isinstance(loaded, torch.Tensor) and isinstance(saved, torch.Tensor):
        return loaded if loaded.dtype == saved.dtype else saved.detach().to(loaded.device, copy=True)
    if isinstance(loaded, dict) and isinstance(saved, dict):
        return {name: _as_saved(value, saved.get(name)) for name, value in loaded.items()}
    if isinstance(loaded, list) and isinstance(saved, list) and len(loaded) == len(saved):
        return [_as_saved(*pair) for pair in zip(loaded, saved)]
    return loaded


def _nested(outer: Any, kind: Any) -> List[Any]:
    """An object, and those of its kind that it has as attributes, also in lists, tuples and dictionaries, and so on."""
    parts = [outer]
    for part in parts:
        # The states of all parameters are in it, and no such objects.
        attributes = {name: value for name, value in vars(part).items() if name not in ("state", "param_groups")}
        inner = (found for found in _holders.found(attributes, lambda value: isinstance(value, kind)))
        parts += [found for found in inner if all(found is not other for other in parts)][: _PARTS_MAX - len(parts)]
    return parts
