"""`ShardedSampler` and the fold over a job's logical shards: results that do not depend on the number of workers.
Programs use both."""

from __future__ import annotations

import math
from typing import Any, Callable, Dict, Iterator, List, NamedTuple, Optional, Sequence, Sized, Tuple

from . import _agreement, _arrays, _context, _exchanges, _native
from ._reduce_op import Average, ReduceOp, Sum, resolve
from ._sampler import EpochOrder
from ._types import Array

_SHARDS = _agreement.Agreement(
    "the number of shards", "Give every rank the same, or leave it out, which takes the driver's --shards"
)

#: The shards of a node of the tree: the first, and the end.
Node = Tuple[int, int]


class DataShard(NamedTuple):
    """One logical shard's part of one step."""

    #: Its number, from 0.
    number: int
    #: The numbers of its samples in the data set; empty if fewer samples are left than there are shards.
    indices: List[int]
    #: Factor for a mean over its samples with which the average over shards becomes the mean over all samples of the
    #: step: 1 where the shards divide the batch; 0 of an empty shard, see `Batch.weight`.
    weight: float
    #: The seed of its random stream in this step, for dropout and the like: of 64 bits, and a function of the plan's seed,
    #: the epoch, the step and the shard alone.
    seed: int


class ShardFold:
    """Adds up the results of a rank's shards, one after the other, over the fixed tree. A node that is whole on this
    rank is combined as soon as it is there, so memory is at most ``2 log2(shards)`` arrays.

    Args:
        deal: the deal of the shards to the ranks.
        rank: this rank.
    """

    def __init__(self, deal: _native.ShardDeal, rank: int) -> None:
        self.shards = deal.shards
        #: The first shard of this rank that is still to come, and the end of its shards.
        self.next, self.end = deal.of(rank)
        self._nodes: List[Tuple[Node, Any]] = []

    def add(self, array: Any) -> None:
        """Adds the result of the next shard. The array is given away: it may be changed.

        Raises:
            ValueError: all shards of this rank are there.
        """
        if self.next >= self.end:
            raise ValueError("all shards of this rank are added already")
        self.push((self.next, self.next + 1), array)
        self.next += 1

    def push(self, node: Node, array: Any) -> None:
        """Adds the partial result of a node, behind those that are there."""
        while self._nodes and _native.are_shard_siblings(self.shards, self._nodes[-1][0], node):
            (first, _), before = self._nodes.pop()
            before += array
            node, array = (first, node[1]), before
        self._nodes.append((node, array))

    @property
    def partial(self) -> List[Any]:
        """The partial results, in order."""
        return [array for _, array in self._nodes]


def check_shards(shards: int) -> None:
    """Compares the number of shards with the other ranks', at the first step with so many in each generation. Callers
    of `reduce_partial` call it first, since the number decides how many results a rank has.

    Raises:
        ValueError: on every rank: others reduce another number of shards.
        CollectiveError: a worker was lost, or the generation was aborted.
    """
    _SHARDS.check(shards, lambda: [(None, str(shards))])


def reduce_partial(partial: Sequence[Any], shards: int, op: ReduceOp, name: Optional[str] = None) -> Any:
    """Folds the partial results of all ranks over the tree: each rank folds a slice, and gives it to all.

    Args:
        partial: this rank's, of one dimension and of equal length on all ranks.
        shards: all shards of the job.
        op: `Average` or `Sum`.
        name: of the calls.

    Returns:
        The result: the same on every rank, and with the same bits in a world of any size.

    Raises:
        CollectiveError: a worker was lost, the generation was aborted, or ranks made calls that do not match.
    """
    deal = _context.shard_deal(shards)
    whole = partial[0] if deal.world == 1 else _exchanged(partial, deal, name)
    if op is Average:
        whole /= shards
    return whole


def _exchanged(partial: Sequence[Any], deal: _native.ShardDeal, name: Optional[str]) -> Any:
    (rank, world), length = _context.place()[:2], len(partial[0])
    bounds = [length * part // world for part in range(world + 1)]
    slices = [slice(start, end) for start, end in zip(bounds, bounds[1:])]
    sent = _arrays.joined([array[part] for part in slices for array in partial])
    splits = [(part.stop - part.start) * len(partial) for part in slices]
    received, _ = _exchanges.alltoall(sent, splits, name and f"{name}.shards")
    own = slices[rank].stop - slices[rank].start
    fold = ShardFold(deal, rank)
    nodes = [node for other in range(world) for node in deal.nodes_of(other)]
    for place, node in enumerate(nodes):
        fold.push(node, received[place * own : (place + 1) * own])
    return _exchanges.allgather(fold.partial[0], name and f"{name}.whole")


def allreduce_shards(
    contributions: Sequence[Array], shards: int, op: Optional[ReduceOp] = None, name: Optional[str] = None
) -> Array:
    """Reduces the shards' contributions over a fixed tree of the shards' numbers: the result has the same bits in a
    world of any size.

    Args:
        contributions: of this rank's shards, in order: arrays of one shape and type.
        shards: all shards of the job.
        op: `Average` over the shards, unless it is `Sum`.
        name: of the call, as of `allreduce`.

    Returns:
        An array of that shape, the same on every rank.

    Raises:
        CollectiveError: a worker was lost, the generation was aborted, or ranks made calls that do not match.
        ValueError: the number of contributions is not that of this rank's shards; another `op`; ranks give other
            `shards`.
    """
    op = resolve(op)
    if op not in (Average, Sum):
        raise ValueError("shards are reduced by Average or Sum")
    check_shards(shards)
    rank = _context.world().rank
    deal = _context.shard_deal(shards)
    _context.carry_shards(deal)
    fold = ShardFold(deal, rank)
    if len(contributions) != fold.end - fold.next or not contributions:
        due = list(range(fold.next, fold.end))
        raise ValueError(f"{len(contributions)} contributions are given, and this rank has the shards {due}")
    first: Any = contributions[0]
    for array in contributions:
        copy, back = _arrays.copy_of(array)
        fold.add(copy.reshape(-1))
    whole: Array = back(reduce_partial(fold.partial, shards, op, name).reshape(first.shape))
    return whole


class ShardedStep:
    """One step of a batch plan, as this rank sees it."""

    def __init__(self, shards: List[DataShard], of: int, global_len: int) -> None:
        #: This rank's shards, in order; at least one.
        self.shards = shards
        #: The number of samples of all shards together.
        self.global_len = global_len
        self._of = of

    def allreduce(self, compute: Callable[[DataShard], Array], op: Optional[ReduceOp] = None) -> Array:
        """Reduces the results of `compute` for each shard; see `allreduce_shards`.

        The result of `compute` must depend on its shard alone: not on the rank, the world, or the shards before. A
        mean over the shard's samples times its `weight` is averaged to the mean over all samples of the step. An empty
        shard has no mean: let its result be zeros (`Batch.weight`).
        """
        return allreduce_shards([compute(shard) for shard in self.shards], self._of, op)


class ShardedSampler(EpochOrder):
    """Deals a data set out by a batch plan: a step's global batch and its logical shards are fixed, and ranks carry
    shards. The trained weights have the same bits in a world of any size. The progress of an epoch belongs to the
    state: keep the sampler in it::

        for step in sampler.steps():
            gradient = step.allreduce(lambda shard: gradient_of(shard.indices) * shard.weight)

    Args:
        dataset: anything with a length.
        global_batch: samples of a step, of all ranks together; the last step of an epoch has what is left.
        shards: logical shards, at least as many as workers; by default the driver's ``--shards``.
        shuffle: another order in each epoch; else the data set's own.
        seed: of that order, and of the shards' random streams.
        begins_anew: as of `ElasticSampler`.

    `set_epoch` begins an epoch, at its start or at the end of the one before.
    """

    def __init__(
        self,
        dataset: Sized,
        global_batch: int,
        shards: Optional[int] = None,
        shuffle: bool = True,
        seed: int = 0,
        begins_anew: bool = False,
    ) -> None:
        super().__init__(dataset, shuffle, seed, begins_anew)
        self.global_batch = global_batch
        self._given = shards
        #: The number of shards that the state was trained with.
        self._held: Optional[int] = None

    @property
    def shards(self) -> int:
        """The number of shards.

        Raises:
            ValueError: the plan cannot be carried out in this world, against the driver's ``--shards``, or by a state that
                was trained with another number of shards.
        """
        is_there = _context.is_initialized()
        driver = _context.session().shards if is_there else None
        world = _context.place()[1] if is_there else 1
        shards = _native.plan_shards(self.global_batch, self._given, driver, world)
        self._check(self._held, shards)
        return shards

    def steps(self) -> Iterator[ShardedStep]:
        """The steps of the epoch that are left; every rank makes equally many. A step that was given out counts as done
        with the next commit.

        Raises:
            ValueError: as of `shards`.
        """
        shards = self._held = self.shards
        self._pass_begins()
        while True:
            deal = _context.shard_deal(shards)
            _context.carry_shards(deal)
            first, end = deal.of(_context.place()[0] if _context.is_initialized() else 0)
            place, length = self.processed_num, len(self.dataset)
            shares = [
                _native.shard_share(place, length, self.global_batch, shards, shard)
                for shard in range(first, end)
            ]
            dealt = [share for share in shares if share is not None]
            if not dealt:
                self._pass_ended()
                self._is_over = True
                return
            order = self._epoch_order()
            own = [
                DataShard(
                    number,
                    order[start:stop],
                    weight,
                    _native.shard_stream(self.seed, self.epoch, place, number),
                )
                for number, (start, stop, _, weight) in enumerate(dealt, first)
            ]
            self.processed_num = dealt[0][2]
            yield ShardedStep(own, shards, self.processed_num - place)

    def _batch_plan(self) -> Optional[Tuple[int, int]]:
        return None if self._held is None else (self._held, self.global_batch)

    def state_dict(self) -> Dict[str, Optional[int]]:
        """Its progress, what is known of its passes, the data set's length and seed, and the plan: global batch, shards."""
        return {**self._place(), "global_batch": self.global_batch, "shards": self._held}

    def load_state_dict(self, state_dict: Dict[str, Optional[int]]) -> None:
        """Goes on from the result of `state_dict`.

        Raises:
            KeyError: something else is given.
            ValueError: it is of another plan, or of another data set and `begins_anew` is not set.
        """
        if "shards" not in state_dict:
            raise ValueError(
                "the state is one of an ElasticSampler, and this is a ShardedSampler: go back to the former, or begin anew"
            )
        held, batch = state_dict["shards"], state_dict["global_batch"]
        if batch != self.global_batch:
            raise ValueError(
                f"the state was trained with a global batch of {batch}, and it is {self.global_batch} now: "
                "go back to the former, or begin anew"
            )
        if self._given is not None:
            self._check(held, self._given)
        self._load_place(state_dict)
        self._held = held

    def __len__(self) -> int:
        """The number of steps that are left of the epoch."""
        return math.ceil((len(self.dataset) - self.processed_num) / self.global_batch)

    @staticmethod
    def _check(held: Optional[int], shards: int) -> None:
        if held is not None and held != shards:
            raise ValueError(
                f"the state was trained with {held} shards, and there are {shards} now: go back to the former number, "
                "or begin anew"
            )
