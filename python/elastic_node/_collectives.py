"""The collectives, with Horovod's names. Every rank calls the same ones in the same order."""

from __future__ import annotations

import array
from typing import Any, List, Optional, Sequence, Tuple, Union

from . import _arrays, _codec, _context, _native
from ._process_sets import ProcessSet, global_process_set, group_of

Average = "mean"
Sum = "sum"
Min = "min"
Max = "max"
Product = "prod"

#: Most bytes that an object may have as pickle makes them.
OBJECT_BYTES_MAX = 1 << 32


class Handle:
    """An operation that runs beside the training thread. Leave its arrays alone until `synchronize`."""

    def __init__(self, native: _native.Handle, result: Any):
        self._native = native
        self._result = result

    def done(self) -> bool:
        """Whether it is done, well or not."""
        return self._native.done()

    def wait(self) -> Any:
        """Waits until it is done, and returns the result.

        Raises:
            CollectiveError: a worker was lost, or the generation was aborted.
        """
        self._native.wait()
        return self._result() if callable(self._result) else self._result


def synchronize(handle: Handle) -> Any:
    """Waits for an operation that a function with `async` in its name began; returns its result.

    Raises:
        CollectiveError: a worker was lost, or the generation was aborted.
    """
    return handle.wait()


def poll(handle: Handle) -> bool:
    """Whether an operation is done: `synchronize` returns at once then."""
    return handle.done()


def allreduce_async_(
    tensor: Any,
    name: Optional[str] = None,
    op: str = Average,
    process_set: ProcessSet = global_process_set,
) -> Handle:
    """As `allreduce_`, beside this thread: give the handle to `synchronize`, and leave `tensor` alone before."""
    native = group_of(process_set).all_reduce([_arrays.writable(tensor)], op)
    return Handle(native, tensor)


def allreduce_(
    tensor: Any,
    name: Optional[str] = None,
    op: str = Average,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Replaces `tensor` by the reduction of all ranks' tensors, in place and without a copy.

    Args:
        tensor: a contiguous NumPy array, torch tensor, or other object with the buffer protocol or DLPack; of
            one shape on all ranks. On the worker's GPU, where the job's collectives are NCCL's.
        name: for Horovod's sake; operations are told apart by their order.
        op: `Average`, `Sum`, `Min`, `Max` or `Product`. Reductions go in the order of the ranks, so every rank
            gets the same bits.

    Raises:
        CollectiveError: a worker was lost, or the generation was aborted.
        BufferError: not contiguous, or on a device that the job's collectives do not reach.
        ValueError: an average of integers; elements that cannot be reduced.
    """
    return allreduce_async_(tensor, name, op, process_set).wait()


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


def allreduce(
    tensor: Any,
    name: Optional[str] = None,
    op: str = Average,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """The reduction of all ranks' tensors, of the same type and shape; a plain number gives a plain number.

    See `allreduce_` for arguments and errors.
    """
    return allreduce_async(tensor, name, op, process_set).wait()


def grouped_allreduce_(
    tensors: Sequence[Any],
    name: Optional[str] = None,
    op: str = Average,
    process_set: ProcessSet = global_process_set,
) -> List[Any]:
    """`allreduce_` of many tensors at once: small ones travel together.

    Every rank gives as many, of the same shapes. Errors as those of `allreduce_`.
    """
    memory = [_arrays.writable(tensor) for tensor in tensors]
    group_of(process_set).all_reduce(memory, op).wait()
    return list(tensors)


def grouped_allreduce(
    tensors: Sequence[Any],
    name: Optional[str] = None,
    op: str = Average,
    process_set: ProcessSet = global_process_set,
) -> List[Any]:
    """`allreduce` of many tensors at once: small ones travel together."""
    copies = [_arrays.copy_of(tensor) for tensor in tensors]
    group_of(process_set).all_reduce([copy for copy, _ in copies], op).wait()
    return [back(copy) for copy, back in copies]


def allgather(
    tensor: Any, name: Optional[str] = None, process_set: ProcessSet = global_process_set
) -> Any:
    """All ranks' tensors, one after the other along the first dimension.

    Args:
        tensor: of shape (rows, …), where the number of rows may differ between ranks.

    Returns:
        Of shape (sum of the rows, …), the same on every rank.

    Raises:
        CollectiveError: a worker was lost, or the generation was aborted.
    """
    group = group_of(process_set)
    source, back = _arrays.contiguous(tensor)
    if not source.shape:
        source = source.reshape(1)
    rows = array.array("q", bytes(8 * group.size))
    group.all_gather(array.array("q", [source.shape[0]]), rows).wait()
    target = _arrays.empty_like(source, sum(rows))
    row = _elements(source.shape[1:])
    group.all_gather(source, target, [count * row for count in rows]).wait()
    return back(target)


def broadcast_async_(
    tensor: Any,
    root_rank: int,
    name: Optional[str] = None,
    process_set: ProcessSet = global_process_set,
) -> Handle:
    """As `broadcast_`, beside this thread."""
    root = process_set.rank_of(root_rank)
    native = group_of(process_set).broadcast(_arrays.writable(tensor), root)
    return Handle(native, tensor)


def broadcast_(
    tensor: Any,
    root_rank: int,
    name: Optional[str] = None,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Replaces `tensor` by that of `root_rank`, in place and without a copy.

    Raises:
        CollectiveError: a worker was lost, or the generation was aborted.
    """
    return broadcast_async_(tensor, root_rank, name, process_set).wait()


def broadcast(
    tensor: Any,
    root_rank: int,
    name: Optional[str] = None,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """The tensor of `root_rank`. All ranks give one of the same shape and type."""
    copy, back = _arrays.copy_of(tensor)
    group_of(process_set).broadcast(copy, process_set.rank_of(root_rank)).wait()
    return back(copy)


def alltoall(
    tensor: Any,
    splits: Optional[Sequence[int]] = None,
    name: Optional[str] = None,
    process_set: ProcessSet = global_process_set,
) -> Union[Any, Tuple[Any, List[int]]]:
    """Sends a part of the rows to each rank.

    Args:
        tensor: of shape (rows, …).
        splits: rows for each rank, in order; equally many if nothing is said.

    Returns:
        What came, in the order of the ranks; with `splits` also the rows that came from each.

    Raises:
        CollectiveError: a worker was lost, or the generation was aborted.
        ValueError: the rows cannot be divided so.
    """
    group = group_of(process_set)
    source, back = _arrays.contiguous(tensor)
    rows, size = source.shape[0], group.size
    if splits is None:
        if rows % size:
            raise ValueError(f"{rows} rows cannot be dealt to {size} ranks evenly: give splits")
        target = _arrays.empty_like(source, rows)
        group.all_to_all(source, target).wait()
        return back(target)
    sent = array.array("q", splits)
    if len(sent) != size or sum(sent) != rows:
        raise ValueError(f"splits {list(sent)} do not deal {rows} rows to {size} ranks")
    received = array.array("q", bytes(8 * size))
    group.all_to_all(sent, received).wait()
    target = _arrays.empty_like(source, sum(received))
    row = _elements(source.shape[1:])
    counts = [count * row for count in sent], [count * row for count in received]
    group.all_to_all(source, target, *counts).wait()
    return back(target), list(received)


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
    group = group_of(process_set)
    source, back = _arrays.contiguous(tensor)
    rows, size = source.shape[0], group.size
    if rows % size:
        raise ValueError(f"{rows} rows cannot be divided among {size} ranks: pad them")
    target = _arrays.empty_like(source, rows // size)
    group.reduce_scatter(source, target, op).wait()
    return back(target)


def barrier(process_set: ProcessSet = global_process_set) -> None:
    """Returns once every rank has called it.

    Raises:
        CollectiveError: a worker was lost, or the generation was aborted.
    """
    group_of(process_set).barrier().wait()


def broadcast_object(
    obj: Any = None,
    root_rank: int = 0,
    name: Optional[str] = None,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """The object of `root_rank`, by pickle.

    Pickle can run code when it is read. Only ranks of this job get here, which have shown its secret.

    Raises:
        CollectiveError: a worker was lost, or the generation was aborted.
        ValueError: the object has more than `OBJECT_BYTES_MAX` bytes.
    """
    group, root = group_of(process_set), process_set.rank_of(root_rank)
    data = _codec.dumps(obj) if group.rank == root else b""
    data = group.broadcast_bytes(data, root, OBJECT_BYTES_MAX)
    return obj if group.rank == root else _codec.loads(data)


def allgather_object(
    obj: Any, name: Optional[str] = None, process_set: ProcessSet = global_process_set
) -> List[Any]:
    """All ranks' objects, by rank, by pickle; see `broadcast_object`."""
    parts = group_of(process_set).all_gather_bytes(_codec.dumps(obj), OBJECT_BYTES_MAX)
    return [_codec.loads(part) for part in parts]


def _elements(shape: Sequence[int]) -> int:
    count = 1
    for extent in shape:
        count *= extent
    return count
