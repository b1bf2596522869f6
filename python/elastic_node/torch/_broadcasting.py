"""Broadcasts of models and optimisers from one rank to all others, with Horovod's names. Programs call them."""

from __future__ import annotations

from typing import Any, Dict, Iterable, List, Optional, Sequence, Tuple, TypeVar, Union

import torch

from .. import _context, _exchanges, _objects
from .._handle import Handle

#: Types of the values of a `state_dict()`.
Value = TypeVar("Value")

#: A parameter, or its name and the parameter.
Named = Union[torch.Tensor, Tuple[Optional[str], object]]


def broadcast_parameters(params: Union[Dict[str, Value], Iterable[Named]], root_rank: int = 0) -> None:
    """Takes over `root_rank`'s parameters, in place.

    Args:
        params: a `state_dict()`, `named_parameters()` or `parameters()`. Other values than tensors stay as they are.

    Raises:
        CollectiveError: a worker was lost, the generation was aborted, or ranks have other parameters.
        ValueError: something else is given.
    """
    if isinstance(params, torch.Tensor) or not isinstance(params, Iterable):
        raise ValueError(f"parameters are given as a dict, pairs or tensors, not {type(params).__name__}")
    pairs: Sequence[Tuple[Any, object]] = list(params.items()) if isinstance(params, dict) else [_pair(given) for given in params]
    landing: List[Tuple[torch.Tensor, Handle[torch.Tensor]]] = []
    with torch.no_grad():
        for name, value in pairs:
            if isinstance(value, torch.Tensor):
                label = name and f"broadcast_parameters.{name}"
                landing.append((value, _exchanges.broadcast_async(value, root_rank, label)))
        for value, handle in landing:
            value.copy_(handle.wait())


def _pair(given: Named) -> Tuple[Optional[str], object]:
    return given if isinstance(given, tuple) else (None, given)


def broadcast_optimizer_state(
    optimizer: torch.optim.Optimizer, root_rank: int = 0, model: Optional[torch.nn.Module] = None
) -> None:
    """Takes over the state of `root_rank`'s optimiser. No parameter and no gradient is touched.

    Args:
        model: for Horovod's sake.

    Raises:
        CollectiveError: a worker was lost, or the generation was aborted.
    """
    state = _objects.broadcast_object(optimizer.state_dict(), root_rank)
    if _context.place()[0] != root_rank:
        optimizer.load_state_dict(state)
