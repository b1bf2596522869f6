"""Elastic Lightning in process: the trainer's checkpoint is the state, in memory.

::

    sampler = en.ElasticDistributedSampler(data)
    state = LightningState(sampler)

    @en.elastic.run
    def train(state):
        trainer = Trainer(
            strategy=ElasticStrategy(state),
            callbacks=[CommitStateCallback(state)],
            devices=en.local_size(),
            max_epochs=10,
        )
        trainer.fit(Digits(), DataLoader(data, 16, sampler=sampler), ckpt_path=state.ckpt_path)

Each generation has a trainer and a module of its own, which go on from the last commit.
"""

from __future__ import annotations

import logging
from typing import Any, Dict, Optional

import torch
import torch.distributed as dist
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.plugins.environments import TorchElasticEnvironment
from lightning.pytorch.strategies import DDPStrategy

from ..elastic import ObjectState
from ..torch import ElasticDistributedSampler
from ._lightning_epoch import EpochPlace, whole_epoch
from ._lightning_watched import watchers_of_training

__all__ = ["CommitStateCallback", "ElasticStrategy", "LightningState"]

#: The path by which `ElasticStrategy` knows the checkpoint that is in the state.
_IN_MEMORY = "elastic://last commit"

_WATCHED_OVER_THE_REST = (
    "%s: watched over the rest of epoch %d alone, in whose middle this generation began. Lightning keeps its sums over an epoch's "
    "training batches, each rank its own, in no checkpoint. Watch a value of the validation, which is whole"
)

#: The counters of a loop's batches when the rest of an epoch begins.
_NO_BATCHES = {"ready": 0, "started": 0, "processed": 0, "completed": 0}


class LightningState(ObjectState):
    """All that a trainer saves in a checkpoint (modules, optimisers, schedulers, loops, callbacks), and the sampler.

    Args:
        sampler: of the training data's loader.
        kwargs: everything else, as with `ObjectState`.
    """

    checkpoint: Optional[Dict[str, Any]]
    sampler: ElasticDistributedSampler
    _given_at_commits = ("checkpoint",)

    def __init__(self, sampler: ElasticDistributedSampler, **kwargs: object) -> None:
        super().__init__(checkpoint=None, sampler=sampler, **kwargs)

    @property
    def ckpt_path(self) -> Optional[str]:
        """For `Trainer.fit`: where the trainer goes on."""
        return _IN_MEMORY if self.checkpoint else None


class _Environment(TorchElasticEnvironment):  # type: ignore[misc]  # Lightning's types are not looked at.
    """The ranks of the generation, however many of them are on each host."""

    def validate_settings(self, num_devices: int, num_nodes: int) -> None:
        """Ranks are the driver's affair."""


class ElasticStrategy(DDPStrategy):  # type: ignore[misc]  # Lightning's types are not looked at.
    """Lightning's DDP over the generation's collectives, with the checkpoint in the state. Give the trainer
    ``devices=en.local_size()``.

    Args:
        state: of `elastic_node.elastic.run`.
        kwargs: of `DDPStrategy`.
    """

    def __init__(self, state: LightningState, **kwargs: Any) -> None:
        super().__init__(cluster_environment=_Environment(), process_group_backend="elastic", **kwargs)
        self._state = state
        self._place: Optional[EpochPlace] = None

    @property
    def distributed_sampler_kwargs(self) -> Dict[str, int]:
        return {"num_replicas": self.world_size, "rank": self.global_rank}

    def reduce(self, tensor: Any, group: Any = None, reduce_op: Any = "mean") -> Any:
        """As `DDPStrategy` with gloo: a mean is a sum that is divided here, also one of integers. Lightning's loggers ask for the
        mean number of samples."""
        if not isinstance(tensor, torch.Tensor) or reduce_op not in ("mean", "avg"):
            return super().reduce(tensor, group, reduce_op)
        total = super().reduce(tensor, group, "sum")
        return total.copy_(total / dist.get_world_size(group))

    def setup_optimizers(self, trainer: Trainer) -> None:
        """As `DDPStrategy`, in view of whole epochs: schedules are made for all steps (`Trainer.estimated_stepping_batches`)."""
        if not self._state.sampler.processed_num:
            super().setup_optimizers(trainer)
            return
        with whole_epoch(self._state.sampler):
            super().setup_optimizers(trainer)
        # The loader is that of a whole epoch, where a schedule has asked: training begins with one of the rest.
        trainer.fit_loop._combined_loader = None

    def process_dataloader(self, dataloader: object) -> object:
        """As `DDPStrategy`, of a loader whose samples the state counts, and that has a batch.

        Raises:
            ValueError: a training loader has another sampler than the state's; or an epoch has no batch for each rank, with
                `drop_last`.
        """
        trainer = self.lightning_module.trainer
        if trainer.training:
            self._check_sampler(dataloader)
            self._leave_a_batch(dataloader)
            if self._place is None:
                self._place = EpochPlace(trainer)
            is_resumed = self._state.checkpoint is not None
            self._place.begin_loader(trainer, dataloader, self._state.sampler, is_resumed)
        return super().process_dataloader(dataloader)

    def _check_sampler(self, loader: Any) -> None:
        """Refuses a training loader whose samples the state's sampler does not count."""
        batches = getattr(loader, "batch_sampler", None)
        if getattr(batches, "sampler", None) is not self._state.sampler:
            raise ValueError(
                f"the training loader ({type(loader).__name__}) does not take its samples from the sampler of LightningState, "
                "which counts what is trained: after a loss, samples would be trained twice or never. Give DataLoader(data, "
                "batch_size, sampler=sampler) with that sampler; in place of a batch_sampler, Lightning puts its own"
            )

    def _leave_a_batch(self, loader: Any) -> None:
        """Goes back by some samples where the rest of an epoch has no batch: Lightning ends the whole training there, and would
        leave out the epoch's validation and schedulers otherwise."""
        if len(loader):
            return
        sampler, batches = self._state.sampler, loader.batch_sampler
        begin = len(sampler.dataset) - batches.batch_size * sampler.num_replicas
        if begin < 0 and batches.drop_last:
            raise ValueError(
                f"an epoch has no batch of {batches.batch_size} samples for each of {sampler.num_replicas} ranks: give fewer "
                "samples for each batch, or leave drop_last out"
            )
        sampler.processed_num = max(begin, 0)

    def begin_batch(self, batch_idx: int) -> None:
        """Before each batch: says whether a validation follows it, as `val_check_interval` counts. For `CommitStateCallback`."""
        if self._place is not None:
            self._place.begin_batch(self.lightning_module.trainer, batch_idx)

    def save_checkpoint(self, checkpoint: Dict[str, Any], filepath: Any, storage_options: Any = None) -> None:
        if filepath == _IN_MEMORY:
            self._state.checkpoint = checkpoint
        else:
            super().save_checkpoint(checkpoint, filepath, storage_options)

    def load_checkpoint(self, checkpoint_path: Any, weights_only: Optional[bool] = None) -> Dict[str, Any]:
        if checkpoint_path != _IN_MEMORY:
            return super().load_checkpoint(checkpoint_path, weights_only)  # type: ignore[no-any-return]  # As above.
        checkpoint = dict(self._state.checkpoint or {})
        # The sampler deals out the rest of the epoch, for another number of ranks: its batches count from 0.
        loops = dict(checkpoint["loops"]["fit_loop"])
        batches = loops["epoch_loop.batch_progress"]
        total = {**batches["total"], "ready": batches["total"]["completed"]}
        loops["epoch_loop.batch_progress"] = {"total": total, "current": dict(_NO_BATCHES), "is_last_batch": False}
        checkpoint["loops"] = {**checkpoint["loops"], "fit_loop": loops}
        return checkpoint


class CommitStateCallback(Callback):  # type: ignore[misc]  # Lightning's types are not looked at.
    """Counts samples, and commits the state before a batch, with all that belongs to the batch before. A commit that is due while
    gradients accumulate waits for their step.

    Warns of callbacks and schedulers that watch a value of the training's batches (`on_epoch=True`), at the end of an epoch in whose
    middle a generation began: Lightning's sums over them are no part of a checkpoint.

    Args:
        state: of `elastic_node.elastic.run`.
        batches_per_commit: number of batches from one commit to the next, at least; 1 for each batch, or each step of accumulated
            gradients.
    """

    def __init__(self, state: LightningState, batches_per_commit: int = 1) -> None:
        self._state, self._every, self._batches = state, batches_per_commit, 0
        #: Number of steps as the last batch began.
        self._steps: Optional[int] = None
        #: Whether this generation began in the middle of the present epoch.
        self._is_rest = False

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        self._batches, self._steps, self._is_rest = 0, None, False
        # The rest of an epoch has fewer batches than the next epoch.
        trainer.reload_dataloaders_every_n_epochs = 1

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        if self._steps is None:
            self._is_rest = self._state.sampler.processed_num > 0
        if self._steps is None or self._batches >= self._every and self._has_stepped(trainer, pl_module):
            self._commit(trainer)
        self._steps = trainer.global_step
        # Lightning leaves out the schedulers that watch a value at the end of a resumed epoch, since a checkpoint has no value.
        # The rest of this epoch gives them one.
        trainer.fit_loop._restarting = False
        trainer.strategy.begin_batch(batch_idx)

    def _has_stepped(self, trainer: Trainer, module: LightningModule) -> bool:
        """Whether the batch before this one made a step: gradients that wait for one are no part of a checkpoint."""
        # A module that steps by itself may use optimisers whose steps Lightning does not count.
        is_counted = module.automatic_optimization or trainer.global_step > 0
        return trainer.global_step != self._steps or not is_counted

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        self._state.sampler.record_batch(batch_idx, trainer.train_dataloader.batch_sampler.batch_size)
        self._batches += 1

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        watchers = watchers_of_training(trainer) if self._is_rest and trainer.is_global_zero else ""
        self._is_rest = False
        if watchers:
            logging.getLogger(__name__).warning(_WATCHED_OVER_THE_REST, watchers, trainer.current_epoch)
        self._state.sampler.set_epoch(self._state.sampler.epoch + 1)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._commit(trainer)

    def _commit(self, trainer: Trainer) -> None:
        self._batches = 0
        trainer.save_checkpoint(_IN_MEMORY, weights_only=False)
        self._state.commit()
