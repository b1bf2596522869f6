"""The settings of torch's modules that training goes by and no `state_dict` has: their modes, training or evaluation, the momenta of
normalisations, and which parameters are frozen. A part of a state's content. `ObjectState` calls it."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Dict, Iterable, Iterator, List, Optional, Tuple

if TYPE_CHECKING:
    import torch

#: Key of the modes in a content: whether a module is in training mode, and the names of the modules in it whose mode differs from
#: that. No attribute of a state has such a key: it would be part of the content.
MODES = "_module_modes"
#: Key of the momenta: that of each normalisation which tracks statistics, by its name. `torch.optim.swa_utils.update_bn` sets it to
#: `None` for its time.
MOMENTA = "_module_momenta"
#: Key of the frozen parameters: the names of those without `requires_grad`.
FROZEN = "_module_frozen"
#: All keys. Commits of earlier releases lack some of them, and leave these settings as they are.
KEYS = (MODES, MOMENTA, FROZEN)

Parts = List[Tuple[str, "torch.nn.Module"]]


def of(module: torch.nn.Module) -> Dict[str, Any]:
    """The settings of a module, by their keys."""
    within = _within(module)
    parts = list(within.named_modules())
    return {
        MODES: (within.training, [name for name, part in parts if part.training != within.training]),
        MOMENTA: {name: part.momentum for name, part in _normalisations(parts)},
        FROZEN: [name for name, parameter in _parameters(parts) if not parameter.requires_grad],
    }


def give(module: torch.nn.Module, saved: Dict[str, Any]) -> List[str]:
    """Gives a module these settings, as far as there are some. Returns the names of the parameters that are frozen now and were not,
    or the other way round."""
    within = _within(module)
    parts = list(within.named_modules())
    if MODES in saved:
        _give_modes(module, within, parts, saved[MODES])
    if MOMENTA in saved:
        _give_momenta(parts, saved[MOMENTA])
    return _give_frozen(parts, saved[FROZEN]) if FROZEN in saved else []


def _give_modes(module: torch.nn.Module, within: torch.nn.Module, parts: Parts, modes: Tuple[bool, List[str]]) -> None:
    is_training, others = modes
    differing = set(others)
    for name, part in parts:
        _set_mode(part, is_training != (name in differing))
    if within is not module:
        _set_mode(module, is_training)


def _give_momenta(parts: Parts, momenta: Dict[str, Optional[float]]) -> None:
    for name, part in _normalisations(parts):
        # torch.compile compiles anew what has been set.
        if name in momenta and part.momentum != momenta[name]:
            part.momentum = momenta[name]


def _give_frozen(parts: Parts, names: List[str]) -> List[str]:
    frozen, changed = set(names), []
    for name, parameter in _parameters(parts):
        can_train = parameter.is_floating_point() or parameter.is_complex()
        # torch.compile compiles anew what has been set.
        if can_train and parameter.requires_grad == (name in frozen):
            parameter.requires_grad_(name not in frozen)
            changed.append(name)
    return changed


def _normalisations(
    parts: Iterable[Tuple[str, torch.nn.Module]],
) -> Iterator[Tuple[str, torch.nn.modules.batchnorm._NormBase]]:
    base = sys.modules["torch"].nn.modules.batchnorm._NormBase
    for name, part in parts:
        if isinstance(part, base) and isinstance(getattr(part, "momentum", ...), (int, float, type(None))):
            yield name, part


def _parameters(parts: Parts) -> Iterator[Tuple[str, torch.nn.Parameter]]:
    """The parameters of each part, by their names in the whole: one that several parts share, by each of its names."""
    for name, part in parts:
        for own, parameter in part.named_parameters(prefix=name, recurse=False):
            yield own, parameter


def _within(module: torch.nn.Module) -> torch.nn.Module:
    """The module whose content is saved for this one."""
    parallel = sys.modules["torch"].nn.parallel
    return module.module if isinstance(module, parallel.DistributedDataParallel) else module


def _set_mode(part: torch.nn.Module, is_training: bool) -> None:
    # torch.compile compiles anew what has been set.
    if part.training != is_training:
        part.training = is_training
