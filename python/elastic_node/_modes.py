"""The settings of torch's modules that training goes by and no `state_dict` has: their modes, training or evaluation, and the momenta
of normalisations. A part of a state's content. `ObjectState` calls it."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Dict, Iterable, Iterator, List, Optional, Tuple

if TYPE_CHECKING:
    import torch

#: Whether a module is in training mode, and the names of the modules in it whose mode differs from that.
Modes = Tuple[bool, List[str]]
#: The momentum of each normalisation in a module that tracks statistics, by its name. `torch.optim.swa_utils.update_bn` sets it to
#: `None` for its time.
Momenta = Dict[str, Optional[float]]


def of(module: torch.nn.Module) -> Tuple[Modes, Momenta]:
    within = _within(module)
    parts = list(within.named_modules())
    modes = within.training, [name for name, part in parts if part.training != within.training]
    return modes, {name: part.momentum for name, part in _normalisations(parts)}


def give(module: torch.nn.Module, modes: Modes) -> None:
    is_training, others = modes
    differing, within = set(others), _within(module)
    for name, part in within.named_modules():
        _set(part, is_training != (name in differing))
    if within is not module:
        _set(module, is_training)


def give_momenta(module: torch.nn.Module, momenta: Momenta) -> None:
    for name, part in _normalisations(_within(module).named_modules()):
        # torch.compile compiles anew what has been set.
        if name in momenta and part.momentum != momenta[name]:
            part.momentum = momenta[name]


def _normalisations(
    parts: Iterable[Tuple[str, torch.nn.Module]],
) -> Iterator[Tuple[str, torch.nn.modules.batchnorm._NormBase]]:
    base = sys.modules["torch"].nn.modules.batchnorm._NormBase
    for name, part in parts:
        if isinstance(part, base) and isinstance(getattr(part, "momentum", ...), (int, float, type(None))):
            yield name, part


def _within(module: torch.nn.Module) -> torch.nn.Module:
    """The module whose content is saved for this one."""
    parallel = sys.modules["torch"].nn.parallel
    return module.module if isinstance(module, parallel.DistributedDataParallel) else module


def _set(part: torch.nn.Module, is_training: bool) -> None:
    # torch.compile compiles anew what has been set.
    if part.training != is_training:
        part.training = is_training
