"""`EpochPlace`: where the rest of an epoch stands in the whole of it. Lightning counts batches of the loader, which begins anew with
each generation. The strategy and the callback of `lightning` use it."""

from __future__ import annotations

from contextlib import contextmanager
from typing import Any, Iterator, Optional

from lightning.pytorch import Trainer

from ..torch import ElasticDistributedSampler


@contextmanager
def whole_epoch(sampler: ElasticDistributedSampler) -> Iterator[None]:
    """Within it, the sampler is at the begin of its epoch."""
    done, sampler.processed_num = sampler.processed_num, 0
    try:
        yield
    finally:
        sampler.processed_num = done


class EpochPlace:
    """The settings of a trainer that count an epoch's batches: `limit_train_batches` and `val_check_interval`.

    Args:
        trainer: with the settings that the program gave it.
    """

    def __init__(self, trainer: Trainer) -> None:
        self._limit, self._interval = trainer.limit_train_batches, trainer.val_check_interval
        #: Number of batches of this epoch, on each rank of this world, before the loader's first one.
        self._done = 0
        #: Number of batches between two validations; nothing if Lightning counts them rightly.
        self._every: Optional[int] = None

    def begin_loader(self, trainer: Trainer, loader: Any, sampler: ElasticDistributedSampler, is_resumed: bool) -> None:
        """Sets what the trainer reads as it takes over the loader of an epoch, or of the rest of one.

        Args:
            loader: with this sampler.
            is_resumed: whether the training has a commit: the world may have grown, and its epochs have become shorter.
        """
        with whole_epoch(sampler):
            whole = len(loader)
        self._done = whole - len(loader)
        if self._limit != 1.0 or isinstance(self._limit, int):
            whole = min(self._limit, whole) if isinstance(self._limit, int) else int(whole * self._limit)
            # An epoch that has no batch left ends with one: Lightning would end the training.
            trainer.limit_train_batches = max(whole - self._done, 1) if self._done else self._limit
        self._every = self._batches_between_validations(trainer, whole)
        if self._every is not None and (self._done or is_resumed and self._every > whole):
            # Lightning refuses more batches than there are. They are counted in `begin_batch`.
            trainer.val_check_interval = min(self._every, max(whole - self._done, 1))

    def _batches_between_validations(self, trainer: Trainer, whole: int) -> Optional[int]:
        is_of_epoch = trainer.check_val_every_n_epoch is not None
        if not is_of_epoch or getattr(trainer, "_val_check_time_interval", None) is not None:
            return None
        if isinstance(self._interval, int):
            return self._interval
        return None if self._interval == 1.0 else max(int(whole * self._interval), 1)

    def begin_batch(self, trainer: Trainer, batch_idx: int) -> None:
        """Says whether a validation follows the batch: after so many batches of the epoch, whichever generation has made them."""
        if self._every is None:
            return
        trainer.val_check_interval = self._interval
        batches = self._done + trainer.num_training_batches
        is_last = batch_idx + 1 == trainer.num_training_batches
        is_due = (self._done + batch_idx + 1) % self._every == 0 or (is_last and self._every > batches)
        # A validation follows each batch whose number, from 1, can be divided by this.
        trainer.val_check_batch = batch_idx + 1 if is_due else batch_idx + 2
