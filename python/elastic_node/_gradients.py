"""Whether a call's results have gradients, without an import of torch for who has none. Called by the collectives."""

from __future__ import annotations

from typing import Any, Callable, List, Sequence

from . import _arrays


def recorder(
    inputs: Sequence[Any], backward: Callable[[Sequence[Any]], Sequence[Any]]
) -> Callable[[List[Any]], List[Any]]:
    """What ties results to inputs, as autograd saw things when the call was made; nothing without torch's tensors."""
    if not any(_arrays.is_torch(value) for value in inputs):
        return list
    from . import _autograd

    if not _autograd.is_recorded(inputs):
        return list
    return lambda results: list(_autograd.record(list(inputs), results, backward))
