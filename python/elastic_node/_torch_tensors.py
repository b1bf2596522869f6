"""torch's tensors of every kind, for `_codec`. Nothing here imports torch before there is a tensor.

A plain tensor is a buffer and a few words, which `_codec` writes itself. All other tensors are written by torch's own
pickling, with storages as buffers. torch would write a storage with its address, so equal content would not give
equal bytes.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Dict, Optional, Tuple, Union

if TYPE_CHECKING:
    import torch

#: Most bytes of a commit that are copied from GPUs into page-locked memory; what is beyond goes tensor by tensor.
PINNED_MAX_BYTES = 4 << 30

#: Result of a pickler's `reducer_override`.
Reduced = Tuple[Any, ...]


def is_tensor(value: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def is_storage(value: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, (torch.UntypedStorage, torch.TypedStorage))


def is_plain(value: torch.Tensor) -> bool:
    """Whether the type, the shape, the bytes, `requires_grad` and being a Parameter are all that there is to it."""
    import torch

    return (
        type(value) in (torch.Tensor, torch.nn.Parameter)
        and value.layout == torch.strided
        and not (value.is_quantized or value.is_nested or value.is_meta)
        and not value.__dict__
    )


def reduced(value: torch.Tensor) -> Optional[Reduced]:
    """The reduced form of a tensor that is not plain, for pickle; None for torch's own.

    Raises:
        TypeError: the tensor has no content.
    """
    import torch

    if value.is_meta:
        raise TypeError("a tensor on the meta device has no values to save")
    if value.layout == torch._mkldnn:  # type: ignore[attr-defined]  # It has no other name.
        return _mkldnn_of, (value.to_dense(),)
    if value.is_quantized and value.untyped_storage().nbytes() > value.numel() * value.element_size():
        # torch writes the whole storage, of which this one is a part.
        whole: Reduced = value.clone(memory_format=torch.contiguous_format).__reduce_ex__(2)
        return whole
    return None


def has_attributes(value: torch.Tensor) -> bool:
    """Whether the program has given a tensor of torch's own classes attributes; `torch.nn.Buffer` is such a tensor."""
    import torch

    return type(value) in (torch.Tensor, torch.nn.Parameter) and bool(value.__dict__)


def without_attributes(value: torch.Tensor) -> torch.Tensor:
    import torch

    return as_it_was(value.detach(), value.requires_grad, isinstance(value, torch.nn.Parameter))


def with_attributes(tensor: torch.Tensor, attributes: Dict[str, Any]) -> torch.Tensor:
    tensor.__dict__.update(attributes)
    return tensor


class Contents:
    """The contents of plain tensors as arrays of bytes in main memory, complete after `wait`: copies from GPUs go on together, into
    page-locked memory, which torch keeps for the next ones."""

    def __init__(self) -> None:
        self._streams: Dict[torch.device, torch.cuda.Stream] = {}
        self._pinned_bytes = 0

    def of(self, value: torch.Tensor) -> Any:
        import torch

        dense = value.detach().resolve_conj().resolve_neg().contiguous()
        # torch keeps twice the memory at most, since it rounds up to powers of two.
        if not dense.is_cuda or self._pinned_bytes + dense.nbytes > PINNED_MAX_BYTES:
            return bytes_in(dense.cpu()).numpy()
        self._pinned_bytes += dense.nbytes
        self._streams[dense.device] = torch.cuda.current_stream(dense.device)
        host = torch.empty(dense.nbytes, dtype=torch.uint8, device="cpu", pin_memory=True)
        return host.copy_(bytes_in(dense), non_blocking=True).numpy()

    def wait(self) -> None:
        """Waits for the copies."""
        for stream in self._streams.values():
            stream.synchronize()


def bytes_in(tensor: torch.Tensor) -> torch.Tensor:
    """The memory of a contiguous tensor, as one of bytes. A single element may have any stride, which `reshape` would keep."""
    import torch

    return tensor.as_strided((tensor.numel(),), (1,)).view(torch.uint8)


def marks_of(value: torch.Tensor) -> Union[Tuple[()], Tuple[bool, bool]]:
    """Whether a plain tensor requires gradients, and whether it is a Parameter; nothing for most tensors, which are neither."""
    import torch

    marks = value.requires_grad, type(value) is torch.nn.Parameter
    return marks if any(marks) else ()


def as_it_was(tensor: torch.Tensor, requires_grad: bool, is_parameter: bool) -> torch.Tensor:
    """A tensor with the flag and the class of the one whose content it has."""
    import torch

    return torch.nn.Parameter(tensor, requires_grad) if is_parameter else tensor.requires_grad_(requires_grad)


def bytes_of(storage: Any) -> Any:
    """The memory of a storage, as an array of bytes."""
    import torch

    untyped = storage if isinstance(storage, torch.UntypedStorage) else storage._untyped_storage
    return torch.empty(0, dtype=torch.uint8, device="cpu").set_(untyped.cpu()).numpy()


def storage_of(data: Any, dtype: Optional[str]) -> Any:
    """The storage; of elements, if it was one of these."""
    import torch

    untyped = torch.frombuffer(data, dtype=torch.uint8).untyped_storage() if data else torch.UntypedStorage(0)
    if dtype is None:
        return untyped
    return torch.TypedStorage(wrap_storage=untyped, dtype=getattr(torch, dtype), _internal=True)


def _mkldnn_of(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to_mkldnn()
