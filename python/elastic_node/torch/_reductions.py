"""Reductions that the collectives do not have, by operations that they have. `_process_group` calls it.

A byte with a sign is summed and multiplied as one without, whose bits are the same. Truth values are reduced by their
least and greatest, complex numbers as pairs. Bitwise reductions are folded here, from the data of all ranks.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, Callable, Dict, NamedTuple, Sequence, Tuple

import torch
import torch.distributed as dist

if TYPE_CHECKING:
    from .._native import Op

_NAMES: Sequence[str] = tuple(dist.ReduceOp.RedOpType.__members__)

_OPS: Dict[str, Op] = {"SUM": "sum", "AVG": "mean", "PRODUCT": "prod", "MIN": "min", "MAX": "max"}

_BITWISE: Dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "BAND": torch.bitwise_and,
    "BOR": torch.bitwise_or,
    "BXOR": torch.bitwise_xor,
}

#: Reductions of truth values; the sum of some is whether any is true, as it is with gloo.
_OF_TRUTHS: Dict[str, Op] = {"SUM": "max", "PRODUCT": "min", "MIN": "min", "MAX": "max", "BAND": "min", "BOR": "max"}

_FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
_INTEGERS = (torch.uint8, torch.int32, torch.int64, torch.uint32, torch.uint64)

#: The sign's bit, whose change turns the order of bytes with a sign into that of bytes without.
_SIGN = 0x80


class Reduction(NamedTuple):
    """Memory that is reduced in the place of a tensor's, and how."""

    memory: torch.Tensor
    op: Op
    #: Has the tensor's memory take the result.
    finish: Callable[[], object]


def name_of(options: Any) -> str:
    """The name of a reduction, given as torch's options or as torch's constant.

    Raises:
        ValueError: there is no such reduction.
    """
    op = getattr(options, "reduceOp", options)
    name = next((name for name in _NAMES if op == getattr(dist.ReduceOp, name)), "of an unknown name")
    if name not in _OPS and name not in _BITWISE:
        raise ValueError(
            f"the elastic backend has no reduction {name}: take SUM, AVG, PRODUCT, MIN, MAX, BAND, BOR or BXOR"
        )
    return name


def is_folded(tensors: Sequence[torch.Tensor], name: str) -> bool:
    """Whether the data of all ranks is folded here.

    Raises:
        ValueError: these elements have no such reduction.
    """
    if name not in _BITWISE or all(name in _OF_TRUTHS and tensor.dtype == torch.bool for tensor in tensors):
        return False
    for tensor in tensors:
        if tensor.is_floating_point() or tensor.is_complex():
            raise _refused(name, tensor)
    return True


def fold(parts: torch.Tensor, name: str) -> torch.Tensor:
    """The reduction of the bytes of all ranks, a row each."""
    return functools.reduce(_BITWISE[name], parts.unbind())


def natively(memory: torch.Tensor, name: str) -> Reduction:
    """The reduction of a tensor's contiguous memory by the collectives.

    Raises:
        ValueError: they do not.
    """
    kind = memory.dtype
    if kind == torch.bool and name in _OF_TRUTHS:
        return Reduction(memory, _OF_TRUTHS[name], _nothing)
    if name not in _OPS:
        raise _refused(name, memory)
    if kind in _FLOATS or (kind in _INTEGERS and name != "AVG"):
        return Reduction(memory, _OPS[name], _nothing)
    if memory.is_complex() and name in ("SUM", "AVG"):
        return Reduction(torch.view_as_real(memory), _OPS[name], _nothing)
    if kind == torch.int8 and name in ("SUM", "PRODUCT"):
        return Reduction(memory.view(torch.uint8), _OPS[name], _nothing)
    if kind == torch.int8 and name in ("MIN", "MAX"):
        content = memory.view(torch.uint8)
        ordered = content ^ _SIGN
        return Reduction(ordered, _OPS[name], lambda: content.copy_(ordered ^ _SIGN))
    raise _refused(name, memory)


def all_natively(memory: Sequence[torch.Tensor], name: str) -> Tuple[Sequence[Reduction], Op]:
    """As `natively`, of tensors that are reduced together."""
    reductions = [natively(of_one, name) for of_one in memory]
    ops = {reduction.op for reduction in reductions}
    if len(ops) > 1:
        raise ValueError(f"{name} of truth values is another reduction than that of numbers: reduce them apart")
    return reductions, ops.pop() if ops else "sum"


def _refused(name: str, tensor: torch.Tensor) -> ValueError:
    return ValueError(f"the elastic backend has no {name} of {tensor.dtype}: docs/torch.md lists what it reduces")


def _nothing() -> None:
    """The memory is the tensor's own."""
