"""Python objects as bytes: a short header, and the large arrays in it as buffers of their own, which are not copied.

It is pickle, whose content can run code when it is read. It is read only from ranks of the same job, which have
shown the job's secret, as a program already trusts them with all it computes.

What is equal gives equal bytes, so that ranks can prove to each other that they hold the same state: without
pickle's memo, which depends on the identity of objects, unless a structure refers to itself.
"""

from __future__ import annotations

import io
import pickle
import sys
from typing import Any, List, Sequence, Tuple


def _tensor_of(data: Any, dtype: str, shape: Tuple[int, ...]) -> Any:
    import torch

    kind = getattr(torch, dtype)
    if 0 in shape:
        return torch.empty(shape, dtype=kind)
    return torch.frombuffer(data, dtype=kind).reshape(shape)


class _Pickler(pickle.Pickler):
    def reducer_override(self, value: Any) -> Any:
        torch = sys.modules.get("torch")
        if torch is None or not isinstance(value, torch.Tensor) or value.layout != torch.strided:
            return NotImplemented
        dense = value.detach().cpu().contiguous()
        shape, dtype = tuple(dense.shape), str(dense.dtype).rpartition(".")[2]
        if dense.numel() == 0:
            return _tensor_of, (b"", dtype, shape)
        flat = dense.reshape(-1).view(torch.uint8).numpy()
        return _tensor_of, (pickle.PickleBuffer(flat), dtype, shape)


def encode(value: Any) -> Tuple[bytes, List[Any]]:
    """The header, and the buffers, which share memory with the arrays in `value`."""
    try:
        return _encode(value, fast=True)
    except (RecursionError, ValueError):
        return _encode(value, fast=False)


def _encode(value: Any, fast: bool) -> Tuple[bytes, List[Any]]:
    file = io.BytesIO()
    buffers: List[Any] = []
    pickler = _Pickler(file, protocol=5, buffer_callback=buffers.append)
    pickler.fast = fast
    pickler.dump(value)
    return file.getvalue(), [buffer.raw() for buffer in buffers]


def decode(header: bytes, buffers: Sequence[Any]) -> Any:
    """The value. Arrays in it share memory with the buffers."""
    return pickle.loads(header, buffers=buffers)


def dumps(value: Any) -> bytes:
    return pickle.dumps(value, protocol=5)


loads = pickle.loads
