"""NumPy arrays, torch tensors, JAX arrays and plain numbers, prepared for collectives. The modules with the
collectives call it."""

from __future__ import annotations

import array
import math
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Callable, Iterator, Sequence, Tuple

if TYPE_CHECKING:
    import torch
    from typing_extensions import TypeGuard

#: Converts a result to the caller's type.
Back = Callable[[Any], Any]


def is_torch(value: Any) -> TypeGuard[torch.Tensor]:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def is_jax(value: Any) -> bool:
    jax = sys.modules.get("jax")
    return jax is not None and isinstance(value, jax.Array)


def is_number(value: Any) -> bool:
    return isinstance(value, (bool, int, float))


def check_unmasked(value: Any) -> None:
    """Refuses an array whose mask would be lost.

    Raises:
        TypeError: it is a masked array.
    """
    masked = sys.modules.get("numpy.ma")
    if masked is not None and isinstance(value, masked.MaskedArray):
        raise TypeError(
            "a masked array would lose its mask: give array.filled(…), with a value that does not change the result, such as 0 "
            "for a sum"
        )


def writable(value: Any) -> Any:
    """The memory of an array that is changed in place.

    Raises:
        TypeError: a JAX array, a masked array, or one of a type that NumPy does not know by itself, such as bfloat16.
        ValueError: a tensor that autograd is recording: its gradient would be wrong without a word.
    """
    if is_jax(value):
        raise TypeError("JAX arrays cannot be changed in place: take the function without the underscore")
    if not is_torch(value):
        check_unmasked(value)
        if _is_foreign(value):
            raise TypeError(
                f"NumPy does not lend the memory of {value.dtype}: take the function without the underscore, or convert the array to "
                "float32"
            )
        return value
    torch = sys.modules["torch"]
    if value.requires_grad and not value.is_leaf and torch.is_grad_enabled():
        raise ValueError(
            "autograd records this tensor, which a collective in place would change unseen: take the function "
            "without the underscore, or call it on tensor.detach() or under torch.no_grad()"
        )
    if not value.is_inference():
        # A backward pass that still needs the old content then fails, as for torch's own operations.
        torch.autograd.graph.increment_version(value)
    return value.detach()


def copy_of(value: Any, as_float: bool = False) -> Tuple[Any, Back]:
    """A contiguous copy, and a function that makes the caller's type of it again. `as_float` is for plain
    integers.

    Raises:
        TypeError: a masked array.
    """
    if is_torch(value):
        torch = sys.modules["torch"]
        return value.detach().clone(memory_format=torch.contiguous_format), _same
    if is_number(value):
        is_float = as_float or isinstance(value, float)
        return array.array("d" if is_float else "q", [value]), _first
    import numpy

    check_unmasked(value)
    return _known(numpy.array(value, order="C"), is_jax(value))


def _same(value: Any) -> Any:
    return value


def _first(value: Any) -> Any:
    return value[0]


def contiguous(value: Any) -> Tuple[Any, Back]:
    """The value, or a copy if it is not contiguous, and a function that makes the caller's type of a result. A number
    is a row.

    Raises:
        TypeError: a masked array.
    """
    if is_torch(value):
        return (value.detach().contiguous() if value.dim() else value.detach().reshape(1)), _same
    import numpy

    check_unmasked(value)
    return _known(numpy.ascontiguousarray(value), is_jax(value))


#: What NumPy's `dtype.isbuiltin` says of types that other packages have added.
_ADDED = 2


def _is_foreign(value: Any) -> bool:
    """Whether the elements are of a small type that JAX's ml_dtypes has added to NumPy, such as bfloat16. Python's buffer protocol
    has no letter for these."""
    dtype: Any = getattr(value, "dtype", None)
    return bool(getattr(dtype, "isbuiltin", 1) == _ADDED and dtype.itemsize <= 2)


def _known(array: Any, from_jax: bool) -> Tuple[Any, Back]:
    """An array of a type that can be shared, and the function that makes the caller's type of a result. Foreign types become wider
    ones, in which a reduction is rounded once, at its end."""
    dtype = array.dtype
    if _is_foreign(array):
        array = array.astype("float32" if _has_fractions(dtype) else "int32")
    if from_jax:
        return array, lambda result: sys.modules["jax"].numpy.asarray(result, dtype=dtype)
    return array, (lambda result: result.astype(dtype)) if array.dtype != dtype else _same


def _has_fractions(dtype: Any) -> bool:
    import numpy

    return bool(numpy.array(0.5).astype(dtype).astype("float64"))


def joined(values: Sequence[Any]) -> Any:
    """Arrays of one dimension, one after the other."""
    if is_torch(values[0]):
        return sys.modules["torch"].cat(list(values))
    import numpy

    return numpy.concatenate(values)


def empty_like(value: Any, rows: int) -> Any:
    """An array of the same type and shape, but for the number of rows."""
    shape = (rows, *value.shape[1:])
    if is_torch(value):
        return value.new_empty(shape)
    import numpy

    return numpy.empty(shape, dtype=value.dtype)


@contextmanager
def naming_types(values: Sequence[Any]) -> Iterator[None]:
    """Has the refusal of arrays name the types of their elements, which the native module knows by their size alone."""
    try:
        yield
    except ValueError as error:
        types = {described(value).partition(" (")[0]: None for value in values}
        raise ValueError(f"{', '.join(types)}: {error}") from error


def row_elements(value: Any) -> int:
    """Number of elements in each row."""
    return math.prod(value.shape[1:])


def described(value: Any, rows: bool = True) -> str:
    """Type, shape and kind of device, as all ranks must have them; without the number of `rows` if they may differ."""
    if isinstance(value, array.array):
        return f"number {value.typecode}"
    if not hasattr(value, "dtype"):
        try:
            view = memoryview(value)
        except TypeError:
            return type(value).__name__
        return f"{view.format} {view.shape}"
    shape = tuple(value.shape) if rows else ("any", *value.shape[1:])
    kind = str(value.dtype).rpartition(".")[2]
    where = f" on {value.device.type}" if is_torch(value) and value.device.type != "cpu" else ""
    return f"{kind} {shape}{where}"


def address(value: Any) -> Tuple[int, Any]:
    """The address of its memory, and its shape: equal for equal memory."""
    if is_torch(value):
        return value.data_ptr(), tuple(value.shape)
    interface = getattr(value, "__array_interface__", None)
    return (interface["data"][0], interface["shape"]) if interface else (id(value), None)


def is_floating(value: Any) -> bool:
    if isinstance(value, array.array):
        return value.typecode in "fd"
    if is_torch(value):
        return bool(value.dtype.is_floating_point or value.dtype.is_complex)
    return getattr(value, "dtype", None) is None or value.dtype.kind not in "iub"


def as_half(value: Any) -> Any:
    return value.half() if is_torch(value) else value.astype("float16")


def as_type(value: Any, dtype: Any) -> Any:
    return value.to(dtype) if is_torch(value) else value.astype(dtype)


def scale(value: Any, factor: float) -> None:
    """Multiplies in place: integers in double precision and towards zero, half precision in single."""
    if factor == 1.0:
        return
    if isinstance(value, array.array) and len(value) == 1:
        value[0] = type(value[0])(value[0] * factor)
    elif is_torch(value):
        torch = sys.modules["torch"]
        if not is_floating(value):
            value.copy_(value.double() * factor)
        elif value.dtype in (torch.float16, torch.bfloat16):
            value.copy_(value.float() * factor)
        else:
            value.mul_(factor)
    else:
        import numpy

        view: Any = numpy.asarray(value)
        wide = numpy.float32 if view.dtype == numpy.float16 else numpy.float64
        view[...] = (view.astype(wide) * factor).astype(view.dtype)


def divide(value: Any, divisor: int) -> None:
    """Divides integers in place, towards zero."""
    if is_torch(value):
        value.div_(divisor, rounding_mode="trunc")
    else:
        import numpy

        view = numpy.asarray(value)
        view[...] = (view - numpy.fmod(view, divisor)) // divisor
