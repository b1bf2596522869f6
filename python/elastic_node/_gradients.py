"""Decides whether a call's results have gradients, without importing torch into a program that has not. Called by the
collectives."""

from __future__ import annotations

from typing import Any, Callable, List, Sequence

from . import _arrays


def recorder(
    inputs: Sequence[Any], backward: Callable[[Sequence[Any]], Sequence[Any]]
) -> Callable[[List[Any]], List[Any]]:
    """A function that ties results to inputs in autograd, as autograd was set when the call was made. Without torch's
    tensors it changes nothing."""
    if not any(_arrays.is_torch(value) for value in inputs):
        return list
    from . import _autograd

    if not _autograd.is_recorded(inputs):
        return list
    return lambda results: list(_autograd.record(list(inputs), results, backward))
