"""torch's tensors of every kind, for `_codec`. Nothing here imports torch before there is a tensor.

A plain tensor is a buffer and a few words, which `_codec` writes itself. All other tensors are written by torch's own
pickling, with storages as buffers. torch would write a storage with its address, so equal content would not give
equal bytes.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Callable, Dict, Iterable, List, Optional, Tuple, Union

if TYPE_CHECKING:
    import torch

#: Most bytes of a commit that are copied from GPUs beside the program; what is beyond is copied before the commit returns.
PINNED_MAX_BYTES = 4 << 30

#: Result of a pickler's `reducer_override`.
Reduced = Tuple[Any, ...]


def is_tensor(value: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def is_storage(value: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, (torch.UntypedStorage, torch.TypedStorage))


def is_optimizer(value: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.optim.Optimizer)


def is_stepper(value: Any) -> bool:
    """Whether it is an optimiser or a gradient scaler."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, (torch.optim.Optimizer, torch.amp.GradScaler))


def is_module(value: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.nn.Module)


def lazy_tensor_of(module: torch.nn.Module) -> Optional[str]:
    """The name of a parameter or a buffer of a module, without those within it, that has no shape yet; None if all have one."""
    import torch

    tensors = [*module.named_parameters(recurse=False), *module.named_buffers(recurse=False)]
    return next((name for name, tensor in tensors if torch.nn.parameter.is_lazy(tensor)), None)


def drop_gradients(parameters: Iterable[torch.Tensor]) -> None:
    """Drops what a step that was broken off has left. The next backward pass would add to it."""
    for parameter in parameters:
        parameter.grad = None


def is_sharded(value: Any) -> bool:
    """Whether it is a tensor of which each rank has a shard."""
    module: Any = sys.modules.get("torch.distributed.tensor")
    return module is not None and isinstance(value, module.DTensor)


def is_plain(value: torch.Tensor) -> bool:
    """Whether the type, the shape, the bytes, `requires_grad` and being a Parameter are all that there is to it."""
    import torch

    return (
        type(value) in (torch.Tensor, torch.nn.Parameter)
        and value.layout == torch.strided
        and not (value.is_quantized or value.is_nested or value.is_meta)
        and not value.__dict__
    )


def is_in_one_piece(value: torch.Tensor) -> bool:
    """Whether its elements are at an address and strides of its own."""
    import torch

    if value.layout != torch.strided or value.is_nested or value.is_meta:
        return False
    try:
        return value.data_ptr() != 0
    except RuntimeError:
        # A tensor of a class that has other tensors in it.
        return False


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


def content_of(value: torch.Tensor) -> Any:
    """The content of a plain tensor as an array of bytes in main memory."""
    return bytes_in(dense(value).cpu()).numpy()


def dense(value: torch.Tensor) -> torch.Tensor:
    """The tensor with its elements one after the other; itself if they are."""
    return value.detach().resolve_conj().resolve_neg().contiguous()


class DeviceCopies:
    """Copies of tensors from GPUs into page-locked memory, which torch keeps for the next ones. They are first copied on their
    GPU, behind the work that was queued there; the way to main memory goes on beside what is queued later."""

    def __init__(self) -> None:
        self._tensors: List[torch.Tensor] = []
        self._bytes = 0
        self._waits: List[Callable[[], None]] = []

    def takes(self, value: torch.Tensor) -> bool:
        """Takes a plain tensor, if it is on a GPU and the limit allows."""
        # torch keeps twice the memory at most, since it rounds up to powers of two.
        if not is_on_gpu(value) or self._bytes + value.nbytes > PINNED_MAX_BYTES:
            return False
        self._tensors.append(value)
        self._bytes += value.nbytes
        return True

    def begin(self) -> List[Any]:
        """Begins to copy the tensors. Returns their arrays of bytes, in the order in which they were taken, complete after
        `wait`."""
        arrays: List[Any] = [None] * len(self._tensors)
        by_device: Dict[torch.device, List[int]] = {}
        for number, tensor in enumerate(self._tensors):
            by_device.setdefault(tensor.device, []).append(number)
        for numbers in by_device.values():
            parts, wait = copy_beside([bytes_in(dense(self._tensors[number])) for number in numbers])
            self._waits.append(wait)
            for number, part in zip(numbers, parts):
                arrays[number] = part.numpy()
        self._tensors.clear()
        return arrays

    def wait(self) -> None:
        """Waits for the copies."""
        for wait in self._waits:
            wait()


def is_on_gpu(value: torch.Tensor) -> bool:
    return value.is_cuda


#: The stream of each GPU's copies to main memory.
_copy_streams: Dict[torch.device, torch.cuda.Stream] = {}


def copy_beside(contents: List[torch.Tensor]) -> Tuple[List[torch.Tensor], Callable[[], None]]:
    """Begins to copy the bytes of tensors on one GPU to main memory. What the current stream does from here on may change the
    tensors. A GPU without room for a second copy is waited for.

    Returns:
        The tensors in main memory, and the function that waits for their bytes.
    """
    import torch

    device, current = contents[0].device, torch.cuda.current_stream(contents[0].device)
    host, parts = _room_for(contents, pin_memory=True)
    try:
        staged, staged_parts = _room_for(contents, device=device)
    except torch.cuda.OutOfMemoryError:
        for part, content in zip(parts, contents):
            part.copy_(content, non_blocking=True)
        current.synchronize()
        return parts, lambda: None
    torch._foreach_copy_(staged_parts, contents)
    stream = _copy_streams.get(device)
    if stream is None:
        stream = _copy_streams[device] = torch.cuda.Stream(device)
    stream.wait_stream(current)
    copied = torch.cuda.Event()
    with torch.cuda.stream(stream):
        host.copy_(staged, non_blocking=True)
        copied.record(stream)
    # torch gives its memory to others once the copy has ended.
    staged.record_stream(stream)
    return parts, copied.synchronize


def _room_for(contents: List[torch.Tensor], **where: Any) -> Tuple[torch.Tensor, List[torch.Tensor]]:
    """One tensor of bytes with room for all of them, and the parts of it."""
    import torch

    starts = [0]
    for content in contents:
        # At addresses that the GPU copies fast.
        starts.append(starts[-1] + -(-content.nbytes // 16) * 16)
    room = torch.empty(starts[-1], dtype=torch.uint8, **where)
    return room, [room[start : start + content.nbytes] for start, content in zip(starts, contents)]


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
