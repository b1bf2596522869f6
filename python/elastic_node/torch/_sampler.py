"""`ElasticDistributedSampler`: torch's `DistributedSampler`, over any changes of the world."""

from __future__ import annotations

from typing import Optional, Sized

from torch.utils.data import DistributedSampler

from .._sampler import ElasticSampler


class ElasticDistributedSampler(ElasticSampler, DistributedSampler[int]):  # type: ignore[misc,override]  # Ranks are looked up.
    """Takes `torch.utils.data.DistributedSampler`'s place: the same arguments, of which ranks are looked up. It is one, too, so
    that frameworks do not put one of theirs in its place.

    Keep it in the `TorchState`, and say after each step what is done: ``sampler.record_batch(number, batch_size)``.
    When the world changes, the samples of the epoch that are left are dealt out anew.

    Args:
        dataset: the data set.
        num_replicas, rank: not needed: they are those of the world, whenever it is walked through.
        shuffle: another order in each epoch.
        seed: of that order.
        drop_last: must be `False`: every sample is given out.

    Raises:
        ValueError: `drop_last`.
    """

    def __init__(
        self,
        dataset: Sized,
        num_replicas: Optional[int] = None,
        rank: Optional[int] = None,
        shuffle: bool = True,
        seed: int = 0,
        drop_last: bool = False,
    ) -> None:
        if drop_last:
            raise ValueError("every sample is given out: leave drop_last out")
        ElasticSampler.__init__(self, dataset, shuffle=shuffle, seed=seed)

    def set_epoch(self, epoch: int) -> None:
        """Begins an epoch; one that has begun goes on, so call it at the start of each as with torch's."""
        if epoch != self.epoch:
            super().set_epoch(epoch)
