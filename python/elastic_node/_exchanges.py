"""The collectives that move data and reduce nothing, with Horovod's names and arguments. Any type of elements is
moved. Programs call them."""

from __future__ import annotations

from typing import Any, List, Optional, Sequence, Tuple, overload

from . import _arrays, _gradients, _timeline
from ._handle import Handle, waited
from ._process_sets import ProcessSet, global_process_set, group_of
from ._types import Array, Counts, Memory, Numbers, Splits, Tensor


@overload
def allgather(
    tensor: Array,
    name: Optional[str] = None,
    process_set: ProcessSet = global_process_set,
) -> Array: ...


@overload
def allgather(
    tensor: float,
    name: Optional[str] = None,
    process_set: ProcessSet = global_process_set,
) -> Numbers: ...


def allgather(
    tensor: Any,
    name: Optional[str] = None,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """All ranks' tensors, one after the other along the first dimension; a function of autograd.

    Args:
        tensor: of shape (rows, …), where the number of rows may differ between ranks; a number counts as one row.
        name, process_set: see `allreduce`.

    Returns:
        Of shape (sum of the rows, …), the same on every rank.

    Raises:
        CollectiveError: a worker was lost, the generation was aborted, or ranks made calls that do not match.
        ValueError: a call of this name is in progress.
    """
    return waited(lambda: allgather_async(tensor, name, process_set))


@overload
def allgather_async(
    tensor: Array,
    name: Optional[str] = None,
    process_set: ProcessSet = global_process_set,
) -> Handle[Array]: ...


@overload
def allgather_async(
    tensor: float,
    name: Optional[str] = None,
    process_set: ProcessSet = global_process_set,
) -> Handle[Numbers]: ...


def allgather_async(
    tensor: Any,
    name: Optional[str] = None,
    process_set: ProcessSet = global_process_set,
) -> Handle[Any]:
    """As `allgather`, beside this thread.

    Returns:
        A handle: `synchronize` waits for it and returns its result.

    Raises:
        ValueError: a call of this name is in progress. `synchronize` raises `CollectiveError`.
    """
    handle = grouped_allgather_async([tensor], name, process_set)
    return Handle(handle._native, lambda: handle._result()[0])


@overload
def grouped_allgather(
    tensors: Sequence[Array],
    name: Optional[str] = None,
    process_set: ProcessSet = global_process_set,
) -> List[Array]: ...


@overload
def grouped_allgather(
    tensors: Sequence[float],
    name: Optional[str] = None,
    process_set: ProcessSet = global_process_set,
) -> List[Numbers]: ...


def grouped_allgather(
    tensors: Sequence[Any],
    name: Optional[str] = None,
    process_set: ProcessSet = global_process_set,
) -> List[Any]:
    """`allgather` of many tensors as one call.

    Args:
        tensors: as many on all ranks; each of shape (rows, …), where the number of rows may differ between ranks.

    Returns:
        The gathered tensors, in the order of `tensors`.

    Raises:
        CollectiveError, ValueError: as of `allgather`.
    """
    return waited(lambda: grouped_allgather_async(tensors, name, process_set))


@overload
def grouped_allgather_async(
    tensors: Sequence[Array],
    name: Optional[str] = None,
    process_set: ProcessSet = global_process_set,
) -> Handle[List[Array]]: ...


@overload
def grouped_allgather_async(
    tensors: Sequence[float],
    name: Optional[str] = None,
    process_set: ProcessSet = global_process_set,
) -> Handle[List[Numbers]]: ...


def grouped_allgather_async(
    tensors: Sequence[Any],
    name: Optional[str] = None,
    process_set: ProcessSet = global_process_set,
) -> Handle[List[Any]]:
    """As `grouped_allgather`, beside this thread.

    Returns:
        A handle: `synchronize` waits for it and returns the list of results.

    Raises:
        ValueError: a call of this name is in progress. `synchronize` raises `CollectiveError`.
    """
    group = group_of(process_set)
    gathers = [_Gather(tensor) for tensor in tensors]
    what = ", ".join(_arrays.described(gather.source, rows=False) for gather in gathers)
    call = group.begin("allgather" if len(gathers) == 1 else "grouped_allgather", name, what)
    for gather in gathers:
        row = _arrays.row_elements(gather.source)
        call.all_gather(gather.source, gather.source.shape[0], row, gather.allocate)

    def backward(gradients: Sequence[Any]) -> List[Any]:
        from ._reductions import grouped_allreduce

        reduced = grouped_allreduce(list(gradients), average=True, process_set=process_set)
        return [gather.own(gradient, group.rank) for gather, gradient in zip(gathers, reduced)]

    record = _gradients.recorder(tensors, backward)
    native = _timeline.launch(group, call, "ALLGATHER", name)
    return Handle(native, lambda: record([gather.result() for gather in gathers]))


class _Gather:
    """One tensor of an all-gather."""

    def __init__(self, tensor: Any) -> None:
        self.shape = getattr(tensor, "shape", ())
        self.source, self.back = _arrays.contiguous(tensor)
        self.rows: List[int] = []
        self.target: Any = None

    def allocate(self, rows: List[int]) -> Any:
        """Makes the output for the ranks' numbers of rows."""
        self.rows = rows
        self.target = _arrays.empty_like(self.source, sum(rows))
        return self.target

    def result(self) -> Any:
        return self.back(self.target)

    def own(self, gradient: Any, rank: int) -> Any:
        """The part of a gradient that belongs to this rank's rows."""
        start = sum(self.rows[:rank])
        return gradient[start : start + self.rows[rank]].reshape(self.shape)


def broadcast_(
    tensor: Memory,
    root_rank: int,
    name: Optional[str] = None,
    process_set: ProcessSet = global_process_set,
) -> Memory:
    """Replaces `tensor` by that of `root_rank`, in place and without a copy.

    Args:
        tensor: contiguous, of one type and shape on all ranks.
        root_rank: a rank of the world.
        name, process_set: see `allreduce`.

    Returns:
        `tensor`.

    Raises:
        CollectiveError: a worker was lost, the generation was aborted, or ranks made calls that do not match.
        BufferError, TypeError, ValueError: as of `allreduce_`.
        ValueError: `root_rank` is not in the process set.
    """
    return waited(lambda: broadcast_async_(tensor, root_rank, name, process_set))


def broadcast_async_(
    tensor: Memory,
    root_rank: int,
    name: Optional[str] = None,
    process_set: ProcessSet = global_process_set,
) -> Handle[Memory]:
    """As `broadcast_`, beside this thread: leave `tensor` alone until `synchronize`.

    Returns:
        A handle: `synchronize` waits for it and returns `tensor`.

    Raises:
        BufferError, TypeError, ValueError: as of `broadcast_`. `synchronize` raises its `CollectiveError`.
    """
    native = _broadcast(_arrays.writable(tensor), root_rank, name, process_set)
    return Handle(native, lambda: tensor)


@overload
def broadcast(
    tensor: Array,
    root_rank: int,
    name: Optional[str] = None,
    process_set: ProcessSet = global_process_set,
) -> Array: ...


@overload
def broadcast(
    tensor: int,
    root_rank: int,
    name: Optional[str] = None,
    process_set: ProcessSet = global_process_set,
) -> int: ...


@overload
def broadcast(
    tensor: float,
    root_rank: int,
    name: Optional[str] = None,
    process_set: ProcessSet = global_process_set,
) -> float: ...


def broadcast(
    tensor: Any,
    root_rank: int,
    name: Optional[str] = None,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """The tensor of `root_rank`; a function of autograd. All ranks give one of the same shape and type.

    Returns:
        A new tensor of that shape and type; a number for a number.

    Raises:
        CollectiveError, BufferError, TypeError, ValueError: as of `broadcast_`.
    """
    return waited(lambda: broadcast_async(tensor, root_rank, name, process_set))


@overload
def broadcast_async(
    tensor: Array,
    root_rank: int,
    name: Optional[str] = None,
    process_set: ProcessSet = global_process_set,
) -> Handle[Array]: ...


@overload
def broadcast_async(
    tensor: int,
    root_rank: int,
    name: Optional[str] = None,
    process_set: ProcessSet = global_process_set,
) -> Handle[int]: ...


@overload
def broadcast_async(
    tensor: float,
    root_rank: int,
    name: Optional[str] = None,
    process_set: ProcessSet = global_process_set,
) -> Handle[float]: ...


def broadcast_async(
    tensor: Any,
    root_rank: int,
    name: Optional[str] = None,
    process_set: ProcessSet = global_process_set,
) -> Handle[Any]:
    """As `broadcast`, beside this thread.

    Returns:
        A handle: `synchronize` waits for it and returns the tensor of `root_rank`.

    Raises:
        BufferError, TypeError, ValueError: as of `broadcast`. `synchronize` raises its `CollectiveError`.
    """
    copy, back = _arrays.copy_of(tensor)
    group = group_of(process_set)
    is_root = group.rank == process_set.rank_of(root_rank)

    def backward(gradients: Sequence[Any]) -> List[Any]:
        from ._reductions import allreduce

        reduced = allreduce(gradients[0], average=True, process_set=process_set)
        return [reduced if is_root else reduced * 0]

    record = _gradients.recorder([tensor], backward)
    native = _broadcast(copy, root_rank, name, process_set)
    return Handle(native, lambda: record([back(copy)])[0])


def _broadcast(memory: Any, root_rank: int, name: Optional[str], process_set: ProcessSet) -> Any:
    group, root = group_of(process_set), process_set.rank_of(root_rank)
    call = group.begin("broadcast", name, f"{_arrays.described(memory)} from rank {root_rank}")
    call.broadcast(memory, root)
    return _timeline.launch(group, call, "BROADCAST", name)


@overload
def alltoall(
    tensor: Array,
    splits: None = None,
    name: Optional[str] = None,
    process_set: ProcessSet = global_process_set,
) -> Array: ...


@overload
def alltoall(  # type: ignore[overload-overlap]  # Torch's tensors are arrays, too: the first that fits counts.
    tensor: Tensor,
    splits: Splits,
    name: Optional[str] = None,
    process_set: ProcessSet = global_process_set,
) -> Tuple[Tensor, Tensor]: ...


@overload
def alltoall(  # type: ignore[overload-overlap]  # Torch's tensors are arrays, too: the first that fits counts.
    tensor: Array,
    splits: Tensor,
    name: Optional[str] = None,
    process_set: ProcessSet = global_process_set,
) -> Tuple[Array, Tensor]: ...


@overload
def alltoall(
    tensor: Array,
    splits: Splits,
    name: Optional[str] = None,
    process_set: ProcessSet = global_process_set,
) -> Tuple[Array, Counts]: ...


def alltoall(
    tensor: Any,
    splits: Optional[Splits] = None,
    name: Optional[str] = None,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Sends a part of the rows to each rank; a function of autograd.

    Args:
        tensor: of shape (rows, …), where the number of rows may differ between ranks.
        splits: rows for each rank, in order: numbers, or a tensor of integers; equally many if nothing is said.
        name, process_set: see `allreduce`.

    Returns:
        The received rows, in the order of the ranks; with `splits` also the rows that came from each: a tensor for a torch
        tensor, else a list.

    Raises:
        CollectiveError: a worker was lost, the generation was aborted, or ranks made calls that do not match.
        ValueError: the rows cannot be divided so.
    """
    return waited(lambda: alltoall_async(tensor, splits, name, process_set))


@overload
def alltoall_async(
    tensor: Array,
    splits: None = None,
    name: Optional[str] = None,
    process_set: ProcessSet = global_process_set,
) -> Handle[Array]: ...


@overload
def alltoall_async(  # type: ignore[overload-overlap]  # Torch's tensors are arrays, too: the first that fits counts.
    tensor: Tensor,
    splits: Splits,
    name: Optional[str] = None,
    process_set: ProcessSet = global_process_set,
) -> Handle[Tuple[Tensor, Tensor]]: ...


@overload
def alltoall_async(  # type: ignore[overload-overlap]  # Torch's tensors are arrays, too: the first that fits counts.
    tensor: Array,
    splits: Tensor,
    name: Optional[str] = None,
    process_set: ProcessSet = global_process_set,
) -> Handle[Tuple[Array, Tensor]]: ...


@overload
def alltoall_async(
    tensor: Array,
    splits: Splits,
    name: Optional[str] = None,
    process_set: ProcessSet = global_process_set,
) -> Handle[Tuple[Array, Counts]]: ...


def alltoall_async(
    tensor: Any,
    splits: Optional[Splits] = None,
    name: Optional[str] = None,
    process_set: ProcessSet = global_process_set,
) -> Handle[Any]:
    """As `alltoall`, beside this thread.

    Returns:
        A handle: `synchronize` waits for it and returns its result.

    Raises:
        ValueError: the rows cannot be divided so. `synchronize` raises `CollectiveError`.
    """
    group = group_of(process_set)
    gather = _Gather(tensor)
    source = gather.source
    sent = _splits_of(splits, source.shape[0], group.size)
    call = group.begin("alltoall", name, _arrays.described(source, rows=False))
    call.all_to_all(source, sent, _arrays.row_elements(source), gather.allocate)

    def backward(gradients: Sequence[Any]) -> List[Any]:
        gradient, _ = alltoall(gradients[0], splits=gather.rows, process_set=process_set)
        return [gradient]

    record = _gradients.recorder([tensor], backward)

    def finish() -> Any:
        (result,) = record([gather.result()])
        return result if splits is None else (result, _received(tensor, splits, gather.rows))

    return Handle(_timeline.launch(group, call, "ALLTOALL", name), finish)


def _splits_of(splits: Any, rows: int, size: int) -> List[int]:
    if splits is None:
        if rows % size:
            raise ValueError(f"{rows} rows cannot be dealt to {size} ranks evenly: give splits")
        return [rows // size] * size
    numbers = splits.tolist() if hasattr(splits, "tolist") else list(splits)
    if not all(isinstance(number, int) and number >= 0 for number in numbers):
        raise ValueError(f"splits must be integers, not {splits}")
    if len(numbers) != size or sum(numbers) != rows:
        raise ValueError(f"splits {numbers} do not deal {rows} rows to {size} ranks")
    return numbers


def _received(tensor: Any, splits: Any, rows: List[int]) -> Any:
    if _arrays.is_torch(splits):
        return splits.new_tensor(rows)
    if _arrays.is_torch(tensor):
        import torch

        return torch.tensor(rows, dtype=torch.int32, device="cpu")
    return rows


def barrier(process_set: ProcessSet = global_process_set) -> None:
    """Returns once every rank has called it.

    Raises:
        CollectiveError: a worker was lost, or the generation was aborted.
    """
    group = group_of(process_set)
    call = group.begin("barrier", None, "")
    call.barrier()
    waited(lambda: Handle(_timeline.launch(group, call, "BARRIER", None), lambda: None))


def join(device: int = -1) -> int:
    """Says that this rank has no more data, and waits until all ranks have said so. Until then, sums and averages of
    the others count this rank as zeros; their other calls raise.

    Args:
        device: for Horovod's sake. Reductions on a GPU need all ranks.

    Returns:
        The rank that came last, on every rank.

    Raises:
        CollectiveError: a worker was lost, or the generation was aborted.
    """
    last = group_of(global_process_set).join().wait()
    assert last is not None
    return last
