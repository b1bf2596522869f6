"""The collectives that move data and reduce nothing, with Horovod's names. Every rank calls the same ones in the same order.

`name` is there for Horovod's sake; operations are told apart by their order. Any type of elements is moved.
"""

from __future__ import annotations

import array
from typing import Any, List, Optional, Sequence, Tuple, Union

from . import _arrays
from ._handle import Handle
from ._process_sets import ProcessSet, global_process_set, group_of


def allgather(
    tensor: Any, name: Optional[str] = None, process_set: ProcessSet = global_process_set
) -> Any:
    """All ranks' tensors, one after the other along the first dimension.

    Args:
        tensor: of shape (rows, …), where the number of rows may differ between ranks; a number counts as one row.

    Returns:
        Of shape (sum of the rows, …), the same on every rank.

    Raises:
        CollectiveError: a worker was lost, or the generation was aborted.
    """
    return allgather_async(tensor, name, process_set).wait()


def allgather_async(
    tensor: Any, name: Optional[str] = None, process_set: ProcessSet = global_process_set
) -> Handle:
    """As `allgather`, beside this thread once the ranks have told each other how many rows they have."""
    group = group_of(process_set)
    source, back = _arrays.contiguous(tensor)
    rows = array.array("q", bytes(8 * group.size))
    group.all_gather(array.array("q", [source.shape[0]]), rows).wait()
    target = _arrays.empty_like(source, sum(rows))
    row = _arrays.row_elements(source)
    native = group.all_gather(source, target, [count * row for count in rows])
    return Handle(native, lambda: back(target))


def broadcast_(
    tensor: Any,
    root_rank: int,
    name: Optional[str] = None,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Replaces `tensor` by that of `root_rank`, in place and without a copy.

    Args:
        tensor: contiguous, of one type and shape on all ranks; see `allreduce_`.
        root_rank: a rank of the world.

    Returns:
        `tensor`.

    Raises:
        CollectiveError: a worker was lost, or the generation was aborted.
        BufferError, TypeError, ValueError: as of `allreduce_`.
        ValueError: `root_rank` is not in the process set.
    """
    return broadcast_async_(tensor, root_rank, name, process_set).wait()


def broadcast_async_(
    tensor: Any,
    root_rank: int,
    name: Optional[str] = None,
    process_set: ProcessSet = global_process_set,
) -> Handle:
    """As `broadcast_`, beside this thread: leave `tensor` alone until `synchronize`."""
    root = process_set.rank_of(root_rank)
    native = group_of(process_set).broadcast(_arrays.writable(tensor), root)
    return Handle(native, lambda: tensor)


def broadcast(
    tensor: Any,
    root_rank: int,
    name: Optional[str] = None,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """The tensor of `root_rank`. All ranks give one of the same shape and type. Errors as those of `broadcast_`."""
    return broadcast_async(tensor, root_rank, name, process_set).wait()


def broadcast_async(
    tensor: Any,
    root_rank: int,
    name: Optional[str] = None,
    process_set: ProcessSet = global_process_set,
) -> Handle:
    """As `broadcast`, beside this thread."""
    copy, back = _arrays.copy_of(tensor)
    native = group_of(process_set).broadcast(copy, process_set.rank_of(root_rank))
    return Handle(native, lambda: back(copy))


def alltoall(
    tensor: Any,
    splits: Optional[Sequence[int]] = None,
    name: Optional[str] = None,
    process_set: ProcessSet = global_process_set,
) -> Union[Any, Tuple[Any, List[int]]]:
    """Sends a part of the rows to each rank.

    Args:
        tensor: of shape (rows, …).
        splits: rows for each rank, in order; equally many if nothing is said. Given on all ranks or on none.

    Returns:
        What came, in the order of the ranks; with `splits` also the rows that came from each.

    Raises:
        CollectiveError: a worker was lost, or the generation was aborted.
        ValueError: the rows cannot be divided so.
    """
    return alltoall_async(tensor, splits, name, process_set).wait()


def alltoall_async(
    tensor: Any,
    splits: Optional[Sequence[int]] = None,
    name: Optional[str] = None,
    process_set: ProcessSet = global_process_set,
) -> Handle:
    """As `alltoall`, beside this thread; with `splits`, once the ranks have told each other theirs."""
    group = group_of(process_set)
    source, back = _arrays.contiguous(tensor)
    rows, size = source.shape[0], group.size
    if splits is None:
        if rows % size:
            raise ValueError(f"{rows} rows cannot be dealt to {size} ranks evenly: give splits")
        target = _arrays.empty_like(source, rows)
        return Handle(group.all_to_all(source, target), lambda: back(target))
    sent = array.array("q", splits)
    if len(sent) != size or sum(sent) != rows:
        raise ValueError(f"splits {list(sent)} do not deal {rows} rows to {size} ranks")
    received = array.array("q", bytes(8 * size))
    group.all_to_all(sent, received).wait()
    target = _arrays.empty_like(source, sum(received))
    row = _arrays.row_elements(source)
    counts = [count * row for count in sent], [count * row for count in received]
    native = group.all_to_all(source, target, *counts)
    return Handle(native, lambda: (back(target), list(received)))


def barrier(process_set: ProcessSet = global_process_set) -> None:
    """Returns once every rank has called it.

    Raises:
        CollectiveError: a worker was lost, or the generation was aborted.
    """
    group_of(process_set).barrier().wait()
