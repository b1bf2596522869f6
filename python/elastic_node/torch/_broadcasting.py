"""Broadcasts of models and optimisers from one rank to all others, with Horovod's names. Programs call them."""

from __future__ import annotations

from typing import Any, Dict, Iterable, List, Optional, Sequence, Tuple, TypeVar, Union

import torch

from .. import _agreement, _context, _exchanges, _objects
from .._handle import Handle
from ._buckets import in_order
from ._loading import content_of, give_optimizer
from ._optimizer import parameters_of

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
    """Takes over the state of `root_rank`'s optimiser, with the types of its tensors, where torch casts them to those of the
    parameters. Its groups stay the objects that they are. No parameter and no gradient is touched.

    State is counted by the parameters' places: ranks compare the parameters' shapes, and their names if the optimiser
    is a `DistributedOptimizer` with `named_parameters`, or `model` is given.

    Args:
        model: the module whose parameters they are.

    Raises:
        CollectiveError: a worker was lost, or the generation was aborted.
        ValueError: on every rank: they have the parameters in another order.
    """
    names: Dict[torch.Tensor, str] = {}
    if model is not None:
        names.update({parameter: name for name, parameter in model.named_parameters()})
    reducer = optimizer.__dict__.get("_reducer")
    if reducer is not None and reducer.settings.are_named:
        names.update(reducer.settings.names)
    way_out = "Give the optimizer its parameters in one order on all ranks, as of model.parameters()"
    _agreement.compare(
        "the order of the optimizer's parameters",
        in_order(parameters_of(optimizer.param_groups), names),
        way_out,
    )
    state = _objects.broadcast_object(content_of(optimizer), root_rank)
    if _context.place()[0] != root_rank:
        give_optimizer(optimizer, state)
