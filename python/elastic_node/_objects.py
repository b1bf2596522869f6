"""Python objects from rank to rank, with Horovod's names.

They go by pickle, which can run code when it is read. Only ranks of this job, which have shown its secret, can send
them.
"""

from __future__ import annotations

from typing import List, Optional, TypeVar

from . import _codec
from ._process_sets import ProcessSet, global_process_set, group_of

Object = TypeVar("Object")

#: Most bytes of pickled objects, of all ranks together.
OBJECT_BYTES_MAX = 1 << 32


def broadcast_object(
    obj: Optional[Object] = None,
    root_rank: int = 0,
    name: Optional[str] = None,
    process_set: ProcessSet = global_process_set,
) -> Object:
    """The object of `root_rank`, by pickle.

    Args:
        obj: what pickle takes; on ranks other than `root_rank` it is not looked at, and may be left out.
        root_rank: a rank of the world.
        name: for Horovod's sake.
        process_set: the ranks that take part; all by default. Every one of them calls it.

    Returns:
        `root_rank`'s object; there itself, on other ranks a copy.

    Raises:
        CollectiveError: a worker was lost, or the generation was aborted.
        ValueError: the object has more than `OBJECT_BYTES_MAX` bytes, or `root_rank` is not in the process set.
    """
    group, root = group_of(process_set), process_set.rank_of(root_rank)
    data = _codec.dumps(obj) if group.rank == root else b""
    data = group.broadcast_bytes(data, root, OBJECT_BYTES_MAX)
    return obj if group.rank == root else _codec.loads(data)  # type: ignore[return-value]  # The root gives an object.


def allgather_object(
    obj: Object, name: Optional[str] = None, process_set: ProcessSet = global_process_set
) -> List[Object]:
    """All ranks' objects, by pickle.

    Args:
        obj: what pickle takes, of any size on each rank.
        name: for Horovod's sake.
        process_set: the ranks that take part; all by default.

    Returns:
        The objects, in the order of the ranks; this rank's is a copy, too.

    Raises:
        CollectiveError: a worker was lost, or the generation was aborted.
        ValueError: the objects have more than `OBJECT_BYTES_MAX` bytes together.
    """
    parts = group_of(process_set).all_gather_bytes(_codec.dumps(obj), OBJECT_BYTES_MAX)
    return [_codec.loads(part) for part in parts]
