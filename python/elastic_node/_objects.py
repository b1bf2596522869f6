"""Python objects from rank to rank, with Horovod's names.

They go by pickle, which can run code when it is read. Only ranks of this job get here, which have shown its secret.
"""

from __future__ import annotations

from typing import Any, List, Optional

from . import _codec
from ._process_sets import ProcessSet, global_process_set, group_of

#: Most bytes that objects may have as pickle makes them, those of all ranks together.
OBJECT_BYTES_MAX = 1 << 32


def broadcast_object(
    obj: Any = None,
    root_rank: int = 0,
    name: Optional[str] = None,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """The object of `root_rank`, by pickle.

    Raises:
        CollectiveError: a worker was lost, or the generation was aborted.
        ValueError: the object has more than `OBJECT_BYTES_MAX` bytes, or `root_rank` is not in the process set.
    """
    group, root = group_of(process_set), process_set.rank_of(root_rank)
    data = _codec.dumps(obj) if group.rank == root else b""
    data = group.broadcast_bytes(data, root, OBJECT_BYTES_MAX)
    return obj if group.rank == root else _codec.loads(data)


def allgather_object(
    obj: Any, name: Optional[str] = None, process_set: ProcessSet = global_process_set
) -> List[Any]:
    """All ranks' objects, by rank, by pickle. Errors as those of `broadcast_object`."""
    parts = group_of(process_set).all_gather_bytes(_codec.dumps(obj), OBJECT_BYTES_MAX)
    return [_codec.loads(part) for part in parts]
