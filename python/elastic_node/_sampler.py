"""`ElasticSampler`: deals a data set out to the ranks, over any changes of the world. Programs make it, and keep it
in their state."""

from __future__ import annotations

import logging
from typing import Dict, Iterator, List, NamedTuple, Optional, Sized, Tuple

from . import _context, _native


_STAYS_DONE = (
    "epoch {epoch} was walked through to its end in the commit that training goes on from: set_epoch({epoch}) leaves it done, and this pass "
    "has no samples. If another pass over the data was due, give each pass a number of its own, which the state counts. Else commit "
    "the number of the next epoch together with the end of this one"
)

_BEGINS_ANEW = (
    "epoch {epoch} was walked through to its end in the commit that training goes on from: set_epoch({epoch}) begins it anew, as this program "
    "has done before. If this is the pass that has ended already, its samples come twice: give each pass a number of its own, which the "
    "state counts"
)


class Batch(NamedTuple):
    """This rank's part of one step."""

    #: The numbers of the batch's samples in the data set; empty if fewer samples are left than there are ranks.
    indices: List[int]
    #: Factor for a mean over this batch with which the average over ranks becomes the mean over all
    #: samples of the step: 1, except in the last step of an epoch; 0 of an empty batch. A mean of no samples is NaN,
    #: and so is 0 times it: divide a sum instead, ``losses.sum() / max(len(batch.indices), 1) * batch.weight``.
    weight: float


class EpochOrder:
    """The progress of an epoch over a data set, and the order of its samples. Base class of the samplers.

    `set_epoch` begins an epoch, at its start or at the end of the one before.
    """

    def __init__(self, dataset: Sized, shuffle: bool, seed: int, begins_anew: bool) -> None:
        self.dataset = dataset
        self.shuffle = shuffle
        self.seed = seed
        self._begins_anew = begins_anew
        #: The epoch.
        self.epoch = 0
        #: Number of the epoch's samples that are done, on all ranks together.
        self.processed_num = 0
        self._order: Optional[List[int]] = None
        #: The generation in which this rank has last done a batch, and the number of its samples.
        self._last_batch: Optional[Tuple[int, int]] = None
        #: The generation in which this rank has last gone through its samples.
        self._walked_in: Optional[int] = None
        #: The generation and the epoch of the last pass that gave all samples that were left.
        self._ended_pass: Optional[Tuple[int, int]] = None
        #: Whether the loop over the epoch's samples has come to its end. A commit within its last step is before that.
        self._is_over = False
        #: Whether the program begins several passes under one number, as far as this rank has seen. It does not go back with the
        #: progress: what was seen behind a commit holds, too.
        self.repeats = False

    def set_epoch(self, epoch: int) -> None:
        """Begins an epoch, none of whose samples is done. The epoch that a generation finds under way, or done, goes on,
        so that a program may call this at the start of each epoch, as with torch's samplers, or at its end, as with Horovod's.

        Give each pass over the data a number of its own: `state.epoch`, or for a validation that is repeated within an epoch, a count of
        validations in the state. The number of an epoch that this generation has walked through begins it anew. A generation that goes on
        from a commit behind its end cannot know whether that pass comes by again or another one is due: it begins the epoch anew
        if a rank has seen the program begin one anew before, else leaves it done, and warns.

        Args:
            epoch: its number, from 0; with `shuffle`, it decides the order.
        """
        if epoch != self.epoch:
            self._begin_epoch(epoch, 0)
        # All ranks alike: no rank has gone through its samples before the generation began.
        elif self._walked_in == _context.generation():
            # A number that is set at the end of the epoch before, and again at the start of its own, is that of one pass.
            self.repeats = self.repeats or self.processed_num > 0
            self._begin_epoch(epoch, 0)
        elif self._is_over and self.processed_num >= len(self.dataset) > 0:
            warning = _BEGINS_ANEW if self.repeats else _STAYS_DONE
            logging.getLogger(__name__).warning(warning.format(epoch=epoch))
            if self.repeats:
                self._begin_epoch(epoch, 0)

    def _begin_epoch(self, epoch: int, processed: int) -> None:
        self.epoch, self.processed_num = epoch, processed
        self._order, self._is_over = None, False

    def _place(self) -> Dict[str, Optional[int]]:
        """What `_load_place` takes over."""
        passes = {"is_over": self._is_over, "repeats": self.repeats}
        return {"epoch": self.epoch, "processed_num": self.processed_num, **passes, **self._data()}

    def data_pass(self, name: str) -> _native.Pass:
        """Its progress, in the form of a checkpoint's ``position``."""
        seed = self.seed if self.shuffle else None
        return name, len(self.dataset), seed, self._batch_plan(), self.epoch, self.processed_num

    def progress(self) -> str:
        """Its progress in words, with all that decides which samples ranks are given: the same on all ranks."""
        plan, batch = self._batch_plan(), self._last_batch
        words = f"{self.processed_num} samples of epoch {self.epoch} done, of {_in_words(self._data())}"
        if plan is not None:
            words += f", by {plan[0]} shards and a global batch of {plan[1]}"
        if batch is not None and batch[0] == _context.generation():
            words += f", in batches of {batch[1]} on each rank"
        return words

    def _batch_plan(self) -> Optional[Tuple[int, int]]:
        """Shards, and samples of a step; nothing if batches are those of ranks."""
        return None

    def _data(self) -> Dict[str, Optional[int]]:
        """The data set whose samples are counted: its length, and the seed of its order; no seed if that is its own."""
        return {"length": len(self.dataset), "seed": self.seed if self.shuffle else None}

    def _load_place(self, state_dict: Dict[str, Optional[int]]) -> None:
        """Takes over a place in an epoch.

        Raises:
            ValueError: it is one of another data set, whose samples have other places, or none of this one.
        """
        epoch, processed = state_dict["epoch"] or 0, state_dict["processed_num"] or 0
        own = self._data()
        # States of earlier releases do not say what they count.
        held = {part: state_dict.get(part, value) for part, value in own.items()}
        if held != own:
            what = f"the state is of {_in_words(held)}, and this rank has {_in_words(own)}"
            if not self._begins_anew:
                raise ValueError(
                    f"{what}: give every rank the data set of the state. To go on with another one, the same on every rank, make the "
                    "sampler with begins_anew=True, which begins the epoch anew"
                )
            logging.getLogger(__name__).warning("epoch %d begins anew: %s", epoch, what)
            processed = 0
        elif not 0 <= processed <= len(self.dataset):
            raise ValueError(f"processed_num is {processed}, of {len(self.dataset)} samples")
        self._begin_epoch(epoch, processed)
        # States of earlier releases say nothing of passes.
        self._is_over = bool(processed and state_dict.get("is_over"))
        self.repeats = self.repeats or bool(state_dict.get("repeats"))

    def _pass_ended(self) -> None:
        """A pass has given all samples that were left, if any."""
        self._ended_pass = _context.generation(), self.epoch

    def _pass_begins(self) -> None:
        """Warns of a second pass over an epoch that is done: it gives nothing. So does the first one of a generation
        that goes on from a commit behind the epoch's last step, as it should."""
        self._walked_in = _context.generation()
        is_done = self.processed_num >= len(self.dataset)
        if is_done and self._ended_pass == (_context.generation(), self.epoch):
            self._ended_pass = None
            warning = "epoch %d is done, and another pass over it has no samples: call set_epoch(%d) first"
            logging.getLogger(__name__).warning(warning, self.epoch, self.epoch + 1)

    def _epoch_order(self) -> List[int]:
        if self._order is None:
            length = len(self.dataset)
            if self.shuffle:
                self._order = _native.permutation(length, self.seed, self.epoch)
            else:
                self._order = list(range(length))
        return self._order


def _in_words(data: Dict[str, Optional[int]]) -> str:
    order = "in its own order" if data["seed"] is None else f"in the order of seed {data['seed']}"
    return f"a data set of {data['length']} samples {order}"


class ElasticSampler(EpochOrder):
    """Gives each rank its share of a data set. The progress of an epoch belongs to the state: keep the sampler in it.

    Two ways to use it:

    - ``for batch in sampler.batches(32)`` gives every sample to one rank once an epoch, whatever happens to the
      world. A batch that was given out counts as done with the next commit.
    - As Horovod's, and as the sampler of a torch `DataLoader`: it yields numbers of samples, and each step says what
      is done with ``record_batch(number, batch_size)``. So that all ranks make equally many steps, up to one
      sample less than there are ranks is given out twice at the end of an epoch.

    Args:
        dataset: anything with a length, which stays the same: a newcomer makes the sampler before it has the state. For
            a curriculum whose data set grows, make a sampler for each of its stages at the beginning, with all of them
            in the state.
        shuffle: another order in each epoch, the same on every rank; else the data set's own.
        seed: of that order.
        begins_anew: whether the epoch begins anew, with a warning, if the state's place in it is one of another data set (its
            length, `shuffle` or `seed`), such as one that has grown since the job was stopped. Every rank must have the new one
            then. Else such a state is refused.

    `set_epoch` begins an epoch, at its start or at the end of the one before.
    """

    def __init__(self, dataset: Sized, shuffle: bool = True, seed: int = 0, begins_anew: bool = False) -> None:
        super().__init__(dataset, shuffle, seed, begins_anew)

    @property
    def rank(self) -> int:
        """This worker's rank; 0 before `init`."""
        return _context.place()[0] if _context.is_initialized() else 0

    @property
    def num_replicas(self) -> int:
        """Number of ranks that share the data set; 1 before `init`."""
        return _context.place()[1] if _context.is_initialized() else 1

    @property
    def remaining_indices(self) -> List[int]:
        """The samples of the epoch that are left, on all ranks together, in order."""
        return self._epoch_order()[self.processed_num :]

    def record_batch(self, batch_idx: int, batch_size: int) -> None:
        """Every rank has done a batch of this size: the next ones of the sampler's order. `batch_idx` is there for
        Horovod's sake.

        Batches that are cut from the samples in another order (sorted by length, in buckets) are not those that are
        counted: after a loss, some samples come twice and others never. Sort within what is recorded as a whole, such
        as the samples of one batch, or of some batches that are recorded and committed together.

        Raises:
            ValueError: the size is negative.
        """
        if batch_size < 0:
            raise ValueError(f"batch_size must not be negative, and is {batch_size}")
        self._walked_in = _context.generation()
        self._last_batch = self._walked_in, batch_size
        done = self.processed_num + batch_size * self.num_replicas
        self.processed_num = min(done, len(self.dataset))

    def batches(self, batch_size: int) -> Iterator[Batch]:
        """The batches of the epoch that are left, `batch_size` samples on each rank; all ranks get equally many.

        The last one deals out evenly what is left, so it may be smaller, or empty: take part in the step's
        collectives all the same.

        All that was given out counts as done with the next commit, also what is not trained yet. A `DataLoader` with
        workers takes batches ahead, and if it has the `indices` of ``batches()`` as its `batch_sampler`, they are never
        trained after a loss. Give it the sampler itself, as `sampler`, and call `record_batch`; or no workers
        (``num_workers=0``).

        Raises:
            ValueError: `batch_size` is less than 1.
        """
        if batch_size < 1:
            raise ValueError(f"batch_size must be at least 1, and is {batch_size}")
        self._pass_begins()
        while True:
            share = _native.share(
                self.processed_num, len(self.dataset), batch_size, self.num_replicas, self.rank
            )
            if share is None:
                self._pass_ended()
                self._is_over = True
                return
            first, end, step_end, weight = share
            self.processed_num = step_end
            self._last_batch = _context.generation(), batch_size
            yield Batch(self._epoch_order()[first:end], weight)

    def reset(self) -> None:
        """The world has changed: the rest of the epoch is dealt out anew. Ranks are looked up when it is walked
        through."""

    def state_dict(self) -> Dict[str, Optional[int]]:
        """Its progress: the epoch, the number of its samples that are done on all ranks together, what is known of its passes, and the
        data set's length and seed."""
        return self._place()

    def load_state_dict(self, state_dict: Dict[str, Optional[int]]) -> None:
        """Goes on from the result of `state_dict`.

        Raises:
            KeyError: something else is given.
            ValueError: it is of another data set, and `begins_anew` is not set, or no place in this one.
        """
        self._load_place(state_dict)

    def __iter__(self) -> Iterator[int]:
        self._pass_begins()
        self._pass_ended()
        left = self.remaining_indices
        due = len(self) * self.num_replicas
        if left:
            # Repeats the samples that are left, until every rank has equally many.
            left = (left * (due // len(left) + 1))[:due]
        return self._to_the_end(left[self.rank :: self.num_replicas], self.epoch)

    def _to_the_end(self, samples: List[int], epoch: int) -> Iterator[int]:
        yield from samples
        self._is_over = self._is_over or self.epoch == epoch

    def __len__(self) -> int:
        left = len(self.dataset) - self.processed_num
        return -(-left // self.num_replicas)
