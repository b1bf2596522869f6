"""NumPy arrays, torch tensors, JAX arrays and plain numbers, as collectives need them."""

from __future__ import annotations

import array
import math
import sys
from typing import Any, Tuple


def is_torch(value: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def is_jax(value: Any) -> bool:
    jax = sys.modules.get("jax")
    return jax is not None and isinstance(value, jax.Array)


def memory(value: Any) -> Any:
    """What the native module takes for `value`: the same memory."""
    return value.detach() if is_torch(value) else value


def writable(value: Any) -> Any:
    """The same for an array that is to be changed in place."""
    if is_jax(value):
        raise TypeError("JAX arrays cannot be changed in place: take the function without the underscore")
    return memory(value)


def copy_of(value: Any) -> Tuple[Any, Any]:
    """A contiguous copy, and what makes the caller's type of it again."""
    if is_torch(value):
        torch = sys.modules["torch"]
        return value.detach().clone(memory_format=torch.contiguous_format), _same
    if isinstance(value, (bool, int)):
        return array.array("q", [value]), _first
    if isinstance(value, float):
        return array.array("d", [value]), _first
    if is_jax(value):
        import numpy

        return numpy.array(value), sys.modules["jax"].numpy.asarray
    import numpy

    return numpy.array(value, order="C"), _same


def _same(value: Any) -> Any:
    return value


def _first(value: Any) -> Any:
    return value[0]


def contiguous(value: Any) -> Tuple[Any, Any]:
    """The value, or a copy if it is not contiguous, and what makes the caller's type of a result. A number is a row."""
    if is_torch(value):
        return (value.detach().contiguous() if value.dim() else value.detach().reshape(1)), _same
    import numpy

    if is_jax(value):
        return numpy.ascontiguousarray(value), sys.modules["jax"].numpy.asarray
    return numpy.ascontiguousarray(value), _same


def empty_like(value: Any, rows: int) -> Any:
    """An array of the same type and shape, but for the number of rows."""
    shape = (rows, *value.shape[1:])
    if is_torch(value):
        return value.new_empty(shape)
    import numpy

    return numpy.empty(shape, dtype=value.dtype)


def row_elements(value: Any) -> int:
    """How many elements each row has."""
    return math.prod(value.shape[1:])
