"""The modes of torch's modules, training or evaluation, as a part of a state's content. `ObjectState` calls it."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, List, Tuple

if TYPE_CHECKING:
    import torch

#: Whether a module is in training mode, and the names of the modules in it whose mode differs from that.
Modes = Tuple[bool, List[str]]


def of(module: torch.nn.Module) -> Modes:
    within = _within(module)
    return within.training, [name for name, part in within.named_modules() if part.training != within.training]


def give(module: torch.nn.Module, modes: Modes) -> None:
    is_training, others = modes
    differing, within = set(others), _within(module)
    for name, part in within.named_modules():
        _set(part, is_training != (name in differing))
    if within is not module:
        _set(module, is_training)


def _within(module: torch.nn.Module) -> torch.nn.Module:
    """The module whose content is saved for this one."""
    parallel = sys.modules["torch"].nn.parallel
    return module.module if isinstance(module, parallel.DistributedDataParallel) else module


def _set(part: torch.nn.Module, is_training: bool) -> None:
    # torch.compile compiles anew what has been set.
    if part.training != is_training:
        part.training = is_training
