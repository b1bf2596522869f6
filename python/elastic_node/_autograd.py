"""Collectives as functions of autograd, for tensors that require a gradient. Imported only if torch is.

The gradients are Horovod's: that of a sum is the sum of all ranks' gradients, that of an average their average.
"""

from __future__ import annotations

from typing import Any, Callable, Optional, Sequence, Tuple

import torch

Tensors = Sequence[torch.Tensor]
#: Maps gradients of the results to gradients of the inputs.
Backward = Callable[[Tensors], Sequence[Optional[torch.Tensor]]]


class _Collective(torch.autograd.Function):
    """Ties results that are there to the inputs that they came from."""

    @staticmethod
    def forward(ctx: Any, backward: Backward, results: Tensors, *inputs: torch.Tensor) -> Tuple[torch.Tensor, ...]:
        ctx.backward_of = backward
        return tuple(results)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        return (None, None, *ctx.backward_of(gradients))


def is_recorded(tensors: Sequence[Any]) -> bool:
    """Whether autograd wants to know of a function of these."""
    return torch.is_grad_enabled() and any(
        isinstance(tensor, torch.Tensor) and tensor.requires_grad for tensor in tensors
    )


def record(inputs: Tensors, results: Tensors, backward: Backward) -> Tuple[torch.Tensor, ...]:
    """The results, as functions of the inputs."""
    with torch.enable_grad():
        return tuple(_Collective.apply(backward, results, *inputs))
