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
from typing import Any, Dict, List, Optional, Sequence, Tuple


def _tensor_of(data: Any, dtype: str, shape: Tuple[int, ...]) -> Any:
    import torch

    kind = getattr(torch, dtype)
    if 0 in shape:
        return torch.empty(shape, dtype=kind)
    return torch.frombuffer(data, dtype=kind).reshape(shape)


#: Name, type and shape of an array, as a checkpoint has them.
Name = Tuple[str, str, Tuple[int, ...]]


class _Pickler(pickle.Pickler):
    #: The name of each array, by the identity of its object.
    names: Dict[int, str] = {}
    #: The name of the array whose buffer comes next.
    next: Optional[Name] = None

    def reducer_override(self, value: Any) -> Any:
        if self.names:
            self._note(value)
        torch = sys.modules.get("torch")
        if torch is None or not isinstance(value, torch.Tensor) or value.layout != torch.strided:
            return NotImplemented
        dense = value.detach().cpu().contiguous()
        shape, dtype = tuple(dense.shape), str(dense.dtype).rpartition(".")[2]
        if dense.numel() == 0:
            return _tensor_of, (b"", dtype, shape)
        flat = dense.reshape(-1).view(torch.uint8).numpy()
        return _tensor_of, (pickle.PickleBuffer(flat), dtype, shape)


    def _note(self, value: Any) -> None:
        """Notes the name of an array. Its buffer is the next one, unless pickle takes no buffer of it."""
        if not _is_array(value):
            return
        name = self.names.get(id(value))
        is_plain = not hasattr(value, "flags") or value.flags.c_contiguous
        dtype = str(value.dtype).rpartition(".")[2]
        self.next = (name, dtype, tuple(value.shape)) if name is not None and is_plain else None


def _is_array(value: Any) -> bool:
    torch, numpy = sys.modules.get("torch"), sys.modules.get("numpy")
    return (torch is not None and isinstance(value, torch.Tensor)) or (
        numpy is not None and isinstance(value, numpy.ndarray)
    )


def _names_in(value: Any, path: str, names: Dict[int, str], depth: int) -> None:
    """Finds the arrays in dictionaries, lists and tuples; the keys that lead to one are its name."""
    if _is_array(value):
        names.setdefault(id(value), path or "state")
        return
    items: Any = ()
    if depth < _DEPTH_MAX and isinstance(value, dict):
        items = value.items()
    elif depth < _DEPTH_MAX and isinstance(value, (list, tuple)):
        items = enumerate(value)
    for key, item in items:
        _names_in(item, f"{path}.{key}" if path else str(key), names, depth + 1)


#: Longest way to an array that has a name.
_DEPTH_MAX = 32


def encode_named(value: Any) -> Tuple[bytes, List[Any], List[Optional[Name]]]:
    """As `encode`, with the name of each buffer that has one."""
    names: Dict[int, str] = {}
    _names_in(value, "", names, 0)
    noted: List[Optional[Name]] = []
    try:
        header, buffers = _encode(value, True, names, noted)
    except (RecursionError, ValueError):
        noted.clear()
        header, buffers = _encode(value, False, names, noted)
    return header, buffers, noted


def encode(value: Any) -> Tuple[bytes, List[Any]]:
    """The header, and the buffers, which share memory with the arrays in `value`."""
    try:
        return _encode(value, True, {}, [])
    except (RecursionError, ValueError):
        return _encode(value, False, {}, [])


def _encode(
    value: Any, fast: bool, names: Dict[int, str], noted: List[Optional[Name]]
) -> Tuple[bytes, List[Any]]:
    file = io.BytesIO()
    buffers: List[Any] = []

    def take(buffer: Any) -> None:
        buffers.append(buffer)
        noted.append(pickler.next)
        pickler.next = None

    pickler = _Pickler(file, protocol=5, buffer_callback=take)
    pickler.fast = fast
    pickler.names = names
    pickler.dump(value)
    return file.getvalue(), [buffer.raw() for buffer in buffers]


def decode(header: bytes, buffers: Sequence[Any]) -> Any:
    """The value. Arrays in it share memory with the buffers."""
    return pickle.loads(header, buffers=buffers)


def dumps(value: Any) -> bytes:
    return pickle.dumps(value, protocol=5)


loads = pickle.loads
