"""The callbacks and schedulers that watch a value of an epoch's training batches. Lightning keeps its sums of them, each rank its own, in no checkpoint, so a
generation that begins in the middle of an epoch has those of the rest. The callback of `lightning` uses it."""

from __future__ import annotations

from typing import Any, Iterator, Set, Tuple

from lightning.pytorch import Trainer

#: Hooks whose values are no sums over the epoch's batches.
_ONCE_AN_EPOCH = ("on_train_start", "on_train_epoch_start", "on_train_epoch_end")


def watchers_of_training(trainer: Trainer) -> str:
    """The callbacks and schedulers that look at such a value at the end of this epoch, each with the value's name; nothing if
    there are none."""
    names = _names_of_sums(trainer)
    return ", ".join(f"{watcher} ({name})" for watcher, name in _watchers(trainer) if name in names)


def _names_of_sums(trainer: Trainer) -> Set[str]:
    """The names of the values that Lightning computes at the end of the epoch from its training batches."""
    try:
        metas = [result.meta for result in (trainer._results or {}).values() if not result.has_reset]
        kept = [meta for meta in metas if meta.on_epoch and meta.fx not in _ONCE_AN_EPOCH]
        return {name for meta in kept for name in (meta.name, meta.forked_name(on_step=False))}
    except AttributeError:
        # Lightning says by no public name where a value comes from. A release without these names trains all the same.
        return set()


def _watchers(trainer: Trainer) -> Iterator[Tuple[str, str]]:
    """The callbacks and schedulers that look at a value at the end of this epoch, each with the value's name."""
    for callback in trainer.callbacks:
        # A `ModelCheckpoint` that saves within an epoch looks at the value of the last batch.
        is_of_steps = getattr(callback, "_every_n_train_steps", 0) or getattr(callback, "_train_time_interval", None)
        if getattr(callback, "monitor", None) and not is_of_steps:
            yield type(callback).__name__, callback.monitor
    for config in trainer.lr_scheduler_configs if trainer.lightning_module.automatic_optimization else ():
        if _is_due(config, trainer.current_epoch):
            yield type(config.scheduler).__name__, config.monitor


def _is_due(config: Any, epoch: int) -> bool:
    """Whether a scheduler looks at its value at the end of this epoch."""
    return bool(config.reduce_on_plateau and config.interval == "epoch" and (epoch + 1) % config.frequency == 0)
