"""Process sets: subsets of the ranks that call collectives among themselves. The modules with the collectives take
them."""

from __future__ import annotations

from typing import List, Optional, Sequence, Union

from . import _context, _native


class ProcessSet:
    """Some of the ranks. Make it known with `add_process_set`, on every rank, anew in each generation: ranks mean
    other workers then."""

    def __init__(self, ranks: Optional[Sequence[int]] = None) -> None:
        #: The members' ranks in the world, in the order of their numbers in the set; `None`: all ranks.
        self.ranks: Optional[List[int]] = None if ranks is None else sorted(ranks)
        self._group: Optional[_native.Group] = None
        self._generation: Optional[int] = None

    @property
    def process_set_id(self) -> Optional[int]:
        """0 for all ranks; another number for a set that is known, and none for others. Horovod's."""
        if self.ranks is None:
            return 0
        return None if self._generation is None else 1 + hash(tuple(self.ranks)) % (1 << 31)

    def included(self) -> bool:
        """Whether this process is in it."""
        return self.ranks is None or _context.place()[0] in self.ranks

    def size(self) -> int:
        """Number of its ranks."""
        return _context.place()[1] if self.ranks is None else len(self.ranks)

    def rank(self) -> int:
        """This process's number in it; -1 if it is not in it."""
        own = _context.place()[0]
        if self.ranks is None:
            return own
        return self.ranks.index(own) if own in self.ranks else -1

    def rank_of(self, world_rank: int) -> int:
        """The number in it of a rank of the world.

        Raises:
            ValueError: that rank is not in it.
        """
        if self.ranks is None:
            if world_rank < 0:
                raise ValueError(f"there is no rank {world_rank} in a world of {self.size()}")
            return world_rank
        if world_rank not in self.ranks:
            raise ValueError(f"rank {world_rank} is not in process set {self.ranks}")
        return self.ranks.index(world_rank)

    def __repr__(self) -> str:
        return f"ProcessSet({self.ranks})"


global_process_set = ProcessSet()


_SETS_WAY_OUT = (
    "Every rank adds the same sets in the same order, also those that it is not in: for pairs, "
    "[add_process_set([first, first + 1]) for first in range(0, size(), 2)], of which a rank takes the one that it is "
    "included() in"
)


def add_process_set(process_set: Union[ProcessSet, Sequence[int]]) -> ProcessSet:
    """Makes a process set known. Every rank of the world calls it with the same ranks, also those that are not in it:
    a program with a set for each pair of ranks adds all pairs, on each rank, in one order.

    Raises:
        ValueError: a rank that the world does not have, or one that is named twice; on all ranks: they give other sets.
        CollectiveError: a worker was lost, or the generation was aborted.
    """
    if not isinstance(process_set, ProcessSet):
        process_set = ProcessSet(process_set)
    world = _context.world()
    ranks = process_set.ranks
    if ranks is None:
        return process_set
    if len(set(ranks)) != len(ranks) or any(not 0 <= rank < world.size for rank in ranks):
        raise ValueError(f"{ranks} are no different ranks of a world of {world.size}")
    if not ranks:
        raise ValueError("a process set needs a rank")
    if process_set._generation == _context.generation():
        raise ValueError(f"{process_set} is known already")
    from ._agreement import compare

    compare("add_process_set", [(None, str(ranks))], _SETS_WAY_OUT)
    included = world.rank in ranks
    key = ranks.index(world.rank) if included else 0
    process_set._group = world.split(0 if included else None, key)
    process_set._generation = _context.generation()
    return process_set


def remove_process_set(process_set: ProcessSet) -> bool:
    """Forgets a process set. Every rank calls it.

    Returns:
        Whether it was known.
    """
    if process_set._generation is None:
        return False
    if process_set._group is not None:
        process_set._group.close()
    process_set._group = process_set._generation = None
    return True


def group_of(process_set: ProcessSet) -> _native.Group:
    """The group that a process set is now."""
    if process_set.ranks is None:
        return _context.world()
    if process_set._generation is None or process_set._generation != _context.generation():
        raise ValueError(
            f"{process_set} is not known in this generation: call add_process_set on every rank"
        )
    if process_set._group is None:
        raise ValueError(f"this rank is not in {process_set}")
    return process_set._group
