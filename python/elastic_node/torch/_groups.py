"""Groups of parameters that a program adds to its optimisers in training. A rank that takes a state over has not added them, and one
that goes back has them too early. `TorchState` calls it."""

from __future__ import annotations

import weakref
from typing import Any, Iterable, List, Optional

import torch

from . import _loading


class Begun:
    """How many groups each optimiser of a state had as `run` began."""

    def __init__(self, optimizers: Iterable[torch.optim.Optimizer]) -> None:
        self._counts = weakref.WeakKeyDictionary({it: len(it.param_groups) for it in optimizers})

    def drop_added(self, optimizer: torch.optim.Optimizer, content: Any) -> None:
        """Drops the last groups of an optimiser where the program has added them since this content was saved: its own lines add
        them again."""
        saved, own = _sizes(content), _sizes_of(optimizer)
        if saved is None or not self._counts.get(optimizer, 0) <= len(saved) < len(own) or own[: len(saved)] != saved:
            return
        for group in optimizer.param_groups[len(saved) :]:
            for part in _loading.with_inner(optimizer):
                for parameter in group["params"]:
                    part.state.pop(parameter, None)
        del optimizer.param_groups[len(saved) :]


def refusal(name: str, optimizer: torch.optim.Optimizer, content: Any) -> Optional[str]:
    """Why an optimiser does not take this content, where its groups are others.

    Args:
        name: of the attribute that has it.
    """
    saved, own = _sizes(content), _sizes_of(optimizer)
    if saved is None or saved == own:
        return None
    return (
        f"the optimiser {name!r} of the state that training goes on from ({type(optimizer).__name__}) has {_words(saved)}, and this "
        f"rank's has {_words(own)}. A group that the program adds in training (add_param_group) cannot be taken over by a rank that has "
        "not added it: make all groups before elastic.run, and freeze their parameters (requires_grad_(False)), or give them lr=0, "
        "until they are to be trained. A checkpoint is taken by a program that makes the same groups"
    )


def _words(sizes: List[int]) -> str:
    return f"{len(sizes)} group{'s' * (len(sizes) != 1)} of {', '.join(map(str, sizes)) or 'no'} parameters"


def _sizes_of(optimizer: torch.optim.Optimizer) -> List[int]:
    return [len(group["params"]) for group in optimizer.param_groups]


def _sizes(content: Any) -> Optional[List[int]]:
    """The numbers of parameters of each group in an optimiser's content; `None` for that of a class with a `state_dict` of its own."""
    groups = content.get("param_groups") if isinstance(content, dict) else None
    if not isinstance(groups, list) or not all(isinstance(it, dict) and isinstance(it.get("params"), list) for it in groups):
        return None
    return [len(group["params"]) for group in groups]
