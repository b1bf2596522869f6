"""Arrays of a state that share memory, as a flat vector and the layers that are views of it do. A rank that takes the state over
gets a copy of each, and what is written to one is no longer seen in the other. `ObjectState` uses it."""

from __future__ import annotations

import sys
from typing import Any, List, NamedTuple, Optional, Sequence, Tuple

from . import _torch_tensors

#: Most pairs of arrays with overlapping bounds that are compared by their elements, such as the columns of a matrix.
PAIRS_MAX = 100_000

#: Most effort for the elements of one pair, in numpy's unit. A pair that takes more counts as one that shares memory.
_WORK_MAX = 10_000


class Part(NamedTuple):
    """An array of a state."""

    #: The attribute that has it.
    attribute: str
    #: The keys and attributes that lead to it, as far as they are known.
    name: str
    array: Any
    #: Whether it stays the object that it is, and is given its content.
    stays: bool


class _Memory(NamedTuple):
    """The place of an array's elements in memory."""

    start: int
    #: Behind the last byte.
    end: int
    shape: Tuple[int, ...]
    #: In bytes.
    strides: Tuple[int, ...]
    first: int
    element_bytes: int
    is_read_only: bool


def first_shared(parts: Sequence[Part]) -> Optional[Tuple[Part, Part]]:
    """Two arrays that have an element's memory in common, and of which at least one is replaced when the state goes back or is
    taken over. Arrays that are read-only both, and tensors of one attribute that are the same one, as tied weights in a module's
    `state_dict` are, do not count.

    Args:
        parts: an object more than once counts as one.
    """
    distinct = {id(part.array): part for part in parts}.values()
    placed: List[Tuple[str, _Memory, Part]] = []
    for part in distinct:
        where = _memory_of(part.array)
        if where is not None:
            placed.append((*where, part))
    placed.sort(key=lambda one: (one[0], one[1].start))
    compared = 0
    open_ones: List[Tuple[str, _Memory, Part]] = []
    for place in placed:
        device, memory, part = place
        open_ones = [one for one in open_ones if one[0] == device and one[1].end > memory.start]
        for _, other_memory, other in open_ones:
            if part.stays and other.stays or memory.is_read_only and other_memory.is_read_only:
                continue
            if _are_tied(part, memory, other, other_memory):
                continue
            if compared == PAIRS_MAX:
                return None
            compared += 1
            if _share_elements(memory, other_memory):
                return other, part
        open_ones.append(place)
    return None


def _are_tied(one: Part, memory: _Memory, other: Part, other_memory: _Memory) -> bool:
    are_tensors = _torch_tensors.is_tensor(one.array) and _torch_tensors.is_tensor(other.array)
    return are_tensors and one.attribute == other.attribute and memory == other_memory


def _share_elements(one: _Memory, other: _Memory) -> bool:
    import numpy

    one_array, other_array = _shadow(one), _shadow(other)
    return numpy.may_share_memory(one_array, other_array, max_work=_WORK_MAX)  # type: ignore[arg-type]  # Any number is taken.


class _Interface:
    """An array for numpy that is never read."""

    def __init__(self, memory: _Memory) -> None:
        self.__array_interface__ = {
            "version": 3,
            "data": (memory.first, True),
            "shape": memory.shape,
            "strides": memory.strides,
            "typestr": f"|V{memory.element_bytes}",
        }


def _shadow(memory: _Memory) -> Any:
    import numpy

    return numpy.asarray(_Interface(memory))


def _memory_of(array: Any) -> Optional[Tuple[str, _Memory]]:
    """The device of an array, and its memory there; None if it has none by itself."""
    numpy = sys.modules.get("numpy")
    if numpy is not None and isinstance(array, numpy.ndarray):
        where = _memory("cpu", array.__array_interface__["data"][0], array.shape, array.strides, array.itemsize)
        return where and (where[0], where[1]._replace(is_read_only=not array.flags.writeable))
    if not _torch_tensors.is_tensor(array) or not _torch_tensors.is_in_one_piece(array):
        return None
    element_bytes = array.element_size()
    strides = tuple(stride * element_bytes for stride in array.stride())
    return _memory(str(array.device), array.data_ptr(), tuple(array.shape), strides, element_bytes)


def _memory(
    device: str, first: int, shape: Tuple[int, ...], strides: Tuple[int, ...], element_bytes: int
) -> Optional[Tuple[str, _Memory]]:
    if 0 in shape or not element_bytes:
        return None
    spans = [(length - 1) * stride for length, stride in zip(shape, strides)]
    start = first + sum(span for span in spans if span < 0)
    end = first + sum(span for span in spans if span > 0) + element_bytes
    return device, _Memory(start, end, shape, strides, first, element_bytes, False)
