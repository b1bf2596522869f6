"""Tensors of a commit, copied straight into the memory of the modules and optimisers that have them already. `TorchState` calls it.

A module's state is then in memory twice, as the live state and as the commit, also while it is taken over. A third
copy would slow the resume of a large state, since the system would have to find its memory first.

The holder still loads what it is given (`load_state_dict`), hooks included: it is given its own tensors, which have the commit's
content by then."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any, Dict, FrozenSet, Iterator, List, NamedTuple, Set, Tuple

import torch

from .._codec import PendingTensor

#: Most levels of dictionaries and lists in which tensors are looked for: an optimiser's have three.
_DEPTH_MAX = 8


def tensors_in(content: Dict[str, Any], holders: Dict[str, Any]) -> FrozenSet[int]:
    """The tensors in the content of modules and optimisers, by the identity of their objects.

    Args:
        content: what a state has captured, by name.
        holders: the objects that have the content of some of these names.
    """
    kinds = (torch.nn.Module, torch.optim.Optimizer)
    of_holders = (value for name, value in content.items() if isinstance(holders.get(name), kinds))
    return frozenset(id(found.value) for value in of_holders for found in _find(value, None, torch.Tensor))


def fill(content: Dict[str, Any], holders: Dict[str, Any]) -> int:
    """Replaces each `PendingTensor`: by the tensor that the holder has in its place, with the commit's content, if that can be
    written to; otherwise by a new one. Arguments as of `tensors_in`. Returns how many were replaced."""
    live = {name: _live_content(holders.get(name)) for name in content}
    taken: Set[int] = set()
    replaced = 0
    for found in _find(content, live, PendingTensor):
        pending, target = found.value, found.live
        if _fits(pending, target) and target.data_ptr() not in taken:
            taken.add(target.data_ptr())
            pending.into(target)
        else:
            target = pending.new()
        found.container[found.key] = target
        replaced += 1
    return replaced


class _Found(NamedTuple):
    """A value in a dictionary or a list, and the value in the same place of live content."""

    container: Any
    key: Any
    value: Any
    live: Any


def _find(content: Any, live: Any, kind: type, depth: int = 0) -> Iterator[_Found]:
    items: List[Tuple[Any, Any]] = []
    if depth < _DEPTH_MAX and type(content) in (dict, OrderedDict):
        items = list(content.items())
    elif depth < _DEPTH_MAX and type(content) is list:
        items = list(enumerate(content))
    for key, value in items:
        try:
            beside = live[key]
        except (IndexError, KeyError, TypeError):
            beside = None
        if isinstance(value, kind):
            yield _Found(content, key, value, beside)
        else:
            yield from _find(value, beside, kind, depth + 1)


def _live_content(holder: Any) -> Any:
    """The content of a module or an optimiser as torch's own code gives it; None where other code takes part, which may talk to
    other ranks (FSDP's and ZeRO's does)."""
    if isinstance(holder, torch.nn.parallel.DistributedDataParallel):
        holder = holder.module
    if isinstance(holder, torch.nn.Module):
        is_plain = all(
            type(module).state_dict is torch.nn.Module.state_dict
            and not module._state_dict_hooks
            and not module._state_dict_pre_hooks
            for module in holder.modules()
        )
        return holder.state_dict() if is_plain else None
    if isinstance(holder, torch.optim.Optimizer):
        is_plain = (
            type(holder).state_dict is torch.optim.Optimizer.state_dict
            and not holder._optimizer_state_dict_pre_hooks
            and not holder._optimizer_state_dict_post_hooks
        )
        return holder.state_dict() if is_plain else None
    return None


def _fits(pending: PendingTensor, target: Any) -> bool:
    return (
        type(target) in (torch.Tensor, torch.nn.Parameter)
        and target.device.type == "cpu"
        and target.layout == torch.strided
        and target.is_contiguous()
        and not target.is_conj()
        and not target.is_neg()
        and target.dtype == getattr(torch, pending.dtype)
        and tuple(target.shape) == pending.shape
    )
