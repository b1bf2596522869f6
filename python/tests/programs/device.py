"""Arrays on a GPU, as torch's CUDA tensors show theirs, in memory of the stand-in of CUDA (`gpu/stand_in`), which is the
host's."""

from __future__ import annotations

import ctypes
import os
from typing import Any, List, Optional, Sequence, Tuple

CUDA = 2
FLOAT = 2


class _Tensor(ctypes.Structure):
    """DLPack's `DLManagedTensor`, flat."""

    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device_kind", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("dimensions", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
        ("context", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
    ]


_capsule = ctypes.pythonapi.PyCapsule_New
_capsule.restype = ctypes.py_object
_capsule.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]


class OnGpu:
    """Numbers of 32 bits. They live as long as the process."""

    def __init__(self, numbers: Sequence[float], ordinal: int = 0) -> None:
        self._lie_at(_allocated(4 * len(numbers)), len(numbers), ordinal)
        self._memory[:] = numbers

    def part(self, start: int, count: int) -> OnGpu:
        """A part, which shares the memory."""
        part = OnGpu.__new__(OnGpu)
        part._lie_at(ctypes.addressof(self._memory) + 4 * start, count, self._ordinal)
        return part

    def _lie_at(self, address: int, count: int, ordinal: int) -> None:
        self.streams: List[Optional[int]] = []
        self._ordinal = ordinal
        self._memory = (ctypes.c_float * count).from_address(address)
        self._shape = (ctypes.c_int64 * 1)(count)
        self._tensor = _Tensor(address, CUDA, ordinal, 1, FLOAT, 32, 1, self._shape, None, 0, None, None)

    def numbers(self) -> List[float]:
        return list(self._memory)

    def __dlpack_device__(self) -> Tuple[int, int]:
        return CUDA, self._ordinal

    def __dlpack__(self, stream: Optional[int] = None) -> Any:
        self.streams.append(stream)
        return _capsule(ctypes.addressof(self._tensor), b"dltensor", None)


def _allocated(length_bytes: int) -> int:
    library = os.environ.get("ELASTIC_CUDA_LIBRARY")
    if library is None:
        # Nobody looks at memory of a GPU that is not there.
        return ctypes.addressof(ctypes.create_string_buffer(length_bytes))
    address = ctypes.c_uint64()
    code = ctypes.CDLL(library).cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(length_bytes))
    assert code == 0, code
    return address.value
