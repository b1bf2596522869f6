"""The reductions of the ranks' values, under Horovod's names. The modules with the collectives use it."""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, Final, Optional

if TYPE_CHECKING:
    from ._native import Op


class ReduceOp(enum.Enum):
    """A reduction. Its values are those of the native module."""

    _value_: Op

    AVERAGE = "mean"
    SUM = "sum"
    ADASUM = "adasum"  # pyright: ignore[reportAssignmentType]  # Not the native module's: `resolve` refuses it.
    MIN = "min"
    MAX = "max"
    PRODUCT = "prod"


Average: Final = ReduceOp.AVERAGE
Sum: Final = ReduceOp.SUM
Adasum: Final = ReduceOp.ADASUM
Min: Final = ReduceOp.MIN
Max: Final = ReduceOp.MAX
Product: Final = ReduceOp.PRODUCT


def resolve(op: Optional[ReduceOp], average: Optional[bool] = None) -> ReduceOp:
    """The reduction that is meant by `op` and Horovod's older `average`; `Average` if nothing is said.

    Raises:
        TypeError: one of them is of another type, as where a name stands in `average`'s place.
        ValueError: both are given.
        NotImplementedError: `Adasum`.
    """
    if average is not None and not isinstance(average, bool):
        raise TypeError(f"average must be True or False, not {average!r}: a name is given as name=…")
    if op is not None and not isinstance(op, ReduceOp):
        raise TypeError(f"{op!r} is no reduction: take Average, Sum, Min, Max or Product")
    if op is not None and average is not None:
        raise ValueError("op supersedes average: give one of them")
    if op is None:
        op = Sum if average is False else Average
    if op is Adasum:
        raise NotImplementedError("Adasum is not there: take Average, and scale the learning rate yourself")
    return op
