"""Content given to optimisers and learning-rate schedulers. What a program may hold of them stays the objects that they are: the list
of groups, the groups, the states of parameters, and the tensors in them. torch's `load_state_dict` makes new ones."""

from __future__ import annotations

import contextlib
import functools
from collections import Counter, OrderedDict, defaultdict
from typing import Any, Dict, List, NamedTuple, Optional

import torch

from .. import _holders
from ._optimizer import parameters_of

#: Most levels of dictionaries and lists that stay the same objects: a state of LBFGS has four.
_DEPTH_MAX = 8

#: Most optimisers or schedulers within one another.
_PARTS_MAX = 64

_DICTIONARIES = (dict, OrderedDict, defaultdict, Counter)

#: The objects that have been given content, by their identity or their memory. They stay alive so that no other object gets one's
#: identity.
_Taken = Dict[int, Any]


def give_optimizer(optimizer: torch.optim.Optimizer, content: Dict[str, Any]) -> None:
    """Loads an optimiser's `state_dict()` as it was saved, into the objects that it has. torch itself casts all floating-point
    tensors in it to their parameter's type, and so moments in float32 of parameters in bfloat16."""
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
    """What was given, in the object `own` where that can take it."""
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


def _take_saved_types(optimizer: torch.optim.Optimizer, content: Dict[str, Any]) -> None:
    groups, states = content.get("param_groups"), content.get("state")
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
