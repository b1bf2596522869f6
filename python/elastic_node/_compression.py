"""Compression of the data that a reduction sends, with Horovod's names. Reductions and `DistributedOptimizer` use
it."""

from __future__ import annotations

from typing import Optional, Protocol, Tuple, Type, TypeVar

from . import _arrays

Array = TypeVar("Array")


class Compressor(Protocol):
    """Compresses an array before it is sent, and converts the result back to the array's own type."""

    @staticmethod
    def compress(tensor: Array) -> Tuple[Array, object]: ...

    @staticmethod
    def decompress(tensor: Array, ctx: object) -> Array: ...


class NoneCompressor:
    """Leaves arrays as they are."""

    @staticmethod
    def compress(tensor: Array) -> Tuple[Array, None]:
        return tensor, None

    @staticmethod
    def decompress(tensor: Array, ctx: object) -> Array:
        return tensor


class FP16Compressor:
    """Sends floating-point numbers as those of 16 bits. Sums beyond 65504 become infinite."""

    @staticmethod
    def compress(tensor: Array) -> Tuple[Array, Optional[object]]:
        if not hasattr(tensor, "dtype") or not _arrays.is_floating(tensor):
            return tensor, None
        return _arrays.as_half(tensor), tensor.dtype  # pyright: ignore[reportAttributeAccessIssue]  # It has one, see above.

    @staticmethod
    def decompress(tensor: Array, ctx: object) -> Array:
        return tensor if ctx is None else _arrays.as_type(tensor, ctx)


class Compression:
    """Values for the argument `compression` of a reduction."""

    none: Type[NoneCompressor] = NoneCompressor
    fp16: Type[FP16Compressor] = FP16Compressor
