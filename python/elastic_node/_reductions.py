"""The collectives that reduce, with Horovod's names. Every rank calls the same ones in the same order.

Each is launched by the function with `async` in its name; the one without waits for it.
"""

from __future__ import annotations

from typing import Any, List, Optional, Sequence

from . import _arrays
from ._handle import Handle
from ._process_sets import ProcessSet, global_process_set, group_of

Average = "mean"
Sum = "sum"
Min = "min"
Max = "max"
Product = "prod"


def allreduce_(
    tensor: Any,
    name: Optional[str] = None,
    op: str = Average,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Replaces `tensor` by the reduction of all ranks' tensors, in place and without a copy.

    Args:
        tensor: a contiguous NumPy array, torch tensor, or other object with the buffer protocol or DLPack; of
            one type and shape on all ranks. On the worker's GPU, where the job's collectives are NCCL's.
        name: for Horovod's sake; operations are told apart by their order.
        op: `Average`, `Sum`, `Min`, `Max` or `Product`. Reductions go in the order of the ranks, so every rank
            gets the same bits.
        process_set: the ranks that take part; all by default.

    Returns:
        `tensor`.

    Raises:
        CollectiveError: a worker was lost, or the generation was aborted.
        BufferError, ValueError: not contiguous, or read-only.
        BufferError: on a device that the job's collectives do not reach.
        TypeError: no memory to share, or a JAX array, which cannot be changed.
        ValueError: an average of integers; elements that cannot be reduced.
    """
    return allreduce_async_(tensor, name, op, process_set).wait()


def allreduce_async_(
    tensor: Any,
    name: Optional[str] = None,
    op: str = Average,
    process_set: ProcessSet = global_process_set,
) -> Handle:
    """As `allreduce_`, beside this thread: give the handle to `synchronize`, and leave `tensor` alone before."""
    native = group_of(process_set).all_reduce([_arrays.writable(tensor)], op)
    return Handle(native, lambda: tensor)


def allreduce(
    tensor: Any,
    name: Optional[str] = None,
    op: str = Average,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """The reduction of all ranks' tensors, of the same type and shape; a plain number gives a plain number.

    See `allreduce_` for arguments and errors; this takes JAX arrays and what is not contiguous, too.
    """
    return allreduce_async(tensor, name, op, process_set).wait()


def allreduce_async(
    tensor: Any,
    name: Optional[str] = None,
    op: str = Average,
    process_set: ProcessSet = global_process_set,
) -> Handle:
    """As `allreduce`, beside this thread: give the handle to `synchronize`."""
    copy, back = _arrays.copy_of(tensor)
    native = group_of(process_set).all_reduce([copy], op)
    return Handle(native, lambda: back(copy))


def grouped_allreduce_(
    tensors: Sequence[Any],
    name: Optional[str] = None,
    op: str = Average,
    process_set: ProcessSet = global_process_set,
) -> List[Any]:
    """`allreduce_` of many tensors at once: small ones travel together.

    Every rank gives as many, of the same types and shapes. Errors as those of `allreduce_`.
    """
    return grouped_allreduce_async_(tensors, name, op, process_set).wait()


def grouped_allreduce_async_(
    tensors: Sequence[Any],
    name: Optional[str] = None,
    op: str = Average,
    process_set: ProcessSet = global_process_set,
) -> Handle:
    """As `grouped_allreduce_`, beside this thread."""
    memory = [_arrays.writable(tensor) for tensor in tensors]
    native = group_of(process_set).all_reduce(memory, op)
    return Handle(native, lambda: list(tensors))


def grouped_allreduce(
    tensors: Sequence[Any],
    name: Optional[str] = None,
    op: str = Average,
    process_set: ProcessSet = global_process_set,
) -> List[Any]:
    """`allreduce` of many tensors at once: small ones travel together. As many, of the same types and shapes, on all ranks."""
    return grouped_allreduce_async(tensors, name, op, process_set).wait()


def grouped_allreduce_async(
    tensors: Sequence[Any],
    name: Optional[str] = None,
    op: str = Average,
    process_set: ProcessSet = global_process_set,
) -> Handle:
    """As `grouped_allreduce`, beside this thread."""
    copies = [_arrays.copy_of(tensor) for tensor in tensors]
    native = group_of(process_set).all_reduce([copy for copy, _ in copies], op)
    return Handle(native, lambda: [back(copy) for copy, back in copies])


def reducescatter(
    tensor: Any,
    name: Optional[str] = None,
    op: str = Average,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """This rank's part, of equal parts along the first dimension, of the reduction of all ranks' tensors.

    Args:
        tensor: of shape (rows, …); the number of ranks divides the number of rows.

    Returns:
        Of shape (rows / size, …).

    Raises:
        CollectiveError: a worker was lost, or the generation was aborted.
        ValueError: the rows cannot be divided so; see also `allreduce_`.
    """
    return reducescatter_async(tensor, name, op, process_set).wait()


def reducescatter_async(
    tensor: Any,
    name: Optional[str] = None,
    op: str = Average,
    process_set: ProcessSet = global_process_set,
) -> Handle:
    """As `reducescatter`, beside this thread."""
    group = group_of(process_set)
    source, back = _arrays.contiguous(tensor)
    rows, size = source.shape[0], group.size
    if rows % size:
        raise ValueError(f"{rows} rows cannot be divided among {size} ranks: pad them")
    target = _arrays.empty_like(source, rows // size)
    native = group.reduce_scatter(source, target, op)
    return Handle(native, lambda: back(target))
