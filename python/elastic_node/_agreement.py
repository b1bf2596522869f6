"""What must be the same on all ranks although no collective carries it, such as the order of an optimiser's parameters:
ranks compare it where it is used first in each generation. Optimisers, process sets, shards and states call it."""

from __future__ import annotations

import hashlib
from typing import Callable, Dict, Hashable, List, Optional, Sequence, Set, Tuple

from . import _context, _objects, _reductions
from ._process_sets import ProcessSet, global_process_set, group_of
from ._reduce_op import Sum

#: One of the things that ranks have alike: its name, and all else in words. A name that a rank does not know is `None`,
#: and fits any other.
Item = Tuple[Optional[str], str]

#: Bytes of each of the numbers of a digest. The square of one, added up over 32768 ranks, is within 64 bits.
_PIECE_BYTES = 3
#: Numbers of a digest.
_PIECES = 4


class Agreement:
    """Compares once a generation. A survivor and a newcomer do it at the same place of the program.

    Args:
        subject: what is compared, in words; it is the name of the exchange.
        way_out: what the program's author can do.
    """

    def __init__(self, subject: str, way_out: str) -> None:
        self._subject, self._way_out = subject, way_out
        self._generation: Optional[int] = None
        self._agreed: Set[Hashable] = set()

    def check(
        self, key: Hashable, items: Callable[[], Sequence[Item]], process_set: ProcessSet = global_process_set
    ) -> None:
        """See `compare`. Without an exchange if `key` was compared in this generation, or there are no items.

        Args:
            key: stands for the items; ranks that have other items may have the same key.
            items: makes the items.
        """
        group_of(process_set)  # It enters the first generation.
        if self._generation != _context.generation():
            self._generation, self._agreed = _context.generation(), set()
        if key in self._agreed:
            return
        given = items()
        if given:
            compare(self._subject, given, self._way_out, process_set)
        self._agreed.add(key)


def compare(
    subject: str, items: Sequence[Item], way_out: str, process_set: ProcessSet = global_process_set
) -> None:
    """Compares this rank's items with those of the other ranks, all of which call it. One exchange of some numbers; if
    they differ, a second one of the texts.

    Raises:
        ValueError: on every rank: items differ. It names the first difference, with all ranks' values.
        CollectiveError: a worker was lost, the generation was aborted, or another rank waits for another call.
    """
    group = group_of(process_set)
    if group.size == 1:
        return
    pieces = _digest(items)
    given = [1, *pieces, *(piece * piece for piece in pieces)]
    # Sums, since ranks that have joined take part in them, with zeros.
    sums = _reductions.grouped_allreduce(given, op=Sum, name=subject, process_set=process_set)
    present, totals, squares = int(sums[0]), sums[1 : 1 + _PIECES], sums[1 + _PIECES :]
    # Of numbers with one mean, the squares add up to the least if all are equal.
    if all(present * int(square) == int(total) ** 2 for total, square in zip(totals, squares)):
        return
    difference = ""
    if present == group.size:
        of_ranks = _objects.allgather_object(list(items), process_set=process_set)
        ranks = process_set.ranks or range(group.size)
        found = _first_difference(dict(zip(ranks, of_ranks)))
        if found is None:
            return
        difference = f": {found}"
    raise ValueError(f"ranks differ in {subject}{difference}. {way_out}")


def _digest(items: Sequence[Item]) -> List[int]:
    digest = hashlib.sha256(repr([tuple(item) for item in items]).encode()).digest()
    starts = range(0, _PIECES * _PIECE_BYTES, _PIECE_BYTES)
    return [int.from_bytes(digest[start : start + _PIECE_BYTES], "little") for start in starts]


def _first_difference(of_ranks: Dict[int, List[Item]]) -> Optional[str]:
    """The first place in which the ranks' items do not fit each other, with what each rank has there."""
    for place in range(max(map(len, of_ranks.values()))):
        there = {rank: items[place] if place < len(items) else None for rank, items in of_ranks.items()}
        present = [item for item in there.values() if item is not None]
        names = {name for name, _ in present if name is not None}
        if len(present) < len(there) or len(names) > 1 or len({rest for _, rest in present}) > 1:
            by_text: Dict[str, List[str]] = {}
            for rank, item in there.items():
                by_text.setdefault("nothing" if item is None else _text(item), []).append(str(rank))
            return "; ".join(f"{text} on rank{'s' * (len(on) > 1)} {', '.join(on)}" for text, on in by_text.items())
    return None


def _text(item: Item) -> str:
    name, rest = item
    return " ".join(part for part in (name, rest) if part)
