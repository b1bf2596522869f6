"""Elastic HF Trainer in process: a trainer for each generation, whose checkpoint is the state, in memory.

::

    state = TransformersState(en.ElasticDistributedSampler(data))

    @en.elastic.run
    def train(state):
        en.init_process_group()
        arguments = TrainingArguments("out", max_steps=1000, per_device_train_batch_size=16)
        return ElasticTrainer(state, model=model, args=arguments, train_dataset=data).train()
"""

from __future__ import annotations

import math
from copy import deepcopy
from dataclasses import asdict
from typing import Any, Dict, Iterator, List, Optional, Tuple

import torch
from accelerate.data_loader import BatchSamplerShard
from torch.utils.data import DataLoader, Dataset, IterableDataset
from transformers import Trainer, TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.trainer_callback import ExportableState

from .. import _context
from ..elastic import ObjectState
from ..torch import ElasticDistributedSampler
from .accelerate import Remaining, as_given, check_ranks

__all__ = ["CommitStateCallback", "ElasticTrainer", "TransformersState"]

#: Parts of a trainer, beside its state, that are given their content back.
_PARTS = ("model", "optimizer", "lr_scheduler")

#: Parts of a trainer's state that are a rank's own, or that each generation finds anew: from the arguments, or by
#: `auto_find_batch_size`.
_NOT_SHARED = ("is_local_process_zero", "is_world_process_zero", "max_steps", "num_train_epochs", "train_batch_size")


class TransformersState(ObjectState):
    """The parts of a trainer's checkpoint (model, optimiser, scheduler, its own state), and the sampler. Of the trainings in the
    function that are over, it has the model and the trainer's state.

    Args:
        sampler: of the training data.
        kwargs: everything else, as with `ObjectState`.
    """

    checkpoint: Optional[Dict[str, Any]]
    sampler: ElasticDistributedSampler
    _given_at_commits = ("checkpoint",)

    def __init__(self, sampler: ElasticDistributedSampler, **kwargs: object) -> None:
        super().__init__(checkpoint=None, sampler=sampler, **kwargs)
        #: The generation in which trainings have ended here, and their number.
        self._ended: Tuple[Optional[int], int] = None, 0
        #: The content of the last of them.
        self._last: Dict[str, Any] = {}

    def _number(self) -> int:
        """The number of the function's present training, from 0."""
        generation, ended = self._ended
        return ended if generation == _context.generation() else 0

    def _finished(self) -> List[Dict[str, Any]]:
        """The contents of the trainings before the one that was committed last."""
        finished: List[Dict[str, Any]] = (self.checkpoint or {}).get("finished", [])
        return finished

    def _is_finished(self) -> bool:
        """Whether a later training than the present one was committed."""
        return self._number() < len(self._finished())

    def _begins(self) -> bool:
        """Whether nothing of the present training was committed."""
        return self.checkpoint is None or self._number() > len(self._finished())

    def _content(self) -> Dict[str, Any]:
        """The content from which the present training goes on; nothing as it begins."""
        if self._is_finished():
            return self._finished()[self._number()]
        return {} if self._begins() else self.checkpoint or {}

    def _commit_training(self, content: Dict[str, Any]) -> None:
        finished = self._finished()
        if self._number() > len(finished):
            finished = [*finished, self._last]
        self.checkpoint = {**content, "finished": finished} if finished else content
        self.commit()

    def _training_ended(self, content: Dict[str, Any]) -> None:
        self._last = content
        self._ended = _context.generation(), self._number() + 1


class CommitStateCallback(TrainerCallback):  # type: ignore[misc]  # The types of transformers are not looked at.
    """Restores the model, the optimiser and the scheduler, counts samples, and commits the state as the job's training begins
    and after a step, for `ElasticTrainer`.

    Args:
        state: of `elastic_node.elastic.run`.
        steps_per_commit: 1 for each step.
    """

    def __init__(self, state: TransformersState, steps_per_commit: int = 1) -> None:
        self._state, self._every = state, steps_per_commit
        self._is_due = self._is_before_epoch_end = self._is_training = False

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        if self._is_training:
            # `auto_find_batch_size` begins anew, with smaller batches: the steps since the last commit are made again.
            self._state.restore()
        self._is_training = True
        if self._state._begins():
            # A survivor of a loss before the next commit has the steps until then in all that is made outside of the function.
            self._commit(kwargs, state, state.stateful_callbacks)
        else:
            content = self._state._content()
            for name in _PARTS:
                if name in content:
                    kwargs[name].load_state_dict(content[name])
        if not self._state._is_finished():
            # Other ranks than those before may have no batch left.
            self._begin_epoch_if_due(args, state)

    def on_substep_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        sampler = self._state.sampler
        # Not that of the arguments: `auto_find_batch_size` makes it smaller.
        sampler.record_batch(state.global_step, state.train_batch_size)
        self._begin_epoch_if_due(args, state)

    def _begin_epoch_if_due(self, args: TrainingArguments, state: TrainerState) -> None:
        """Begins the next epoch where this one has no batch left."""
        sampler = self._state.sampler
        if len(sampler) < (state.train_batch_size if args.dataloader_drop_last else 1):
            sampler.set_epoch(sampler.epoch + 1)

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        self.on_substep_end(args, state, control)
        sampler = self._state.sampler
        state.epoch = sampler.epoch + sampler.processed_num / len(sampler.dataset)
        self._is_due = state.global_step % self._every == 0 or state.global_step >= state.max_steps
        # The last step of an epoch is over after the logging, evaluation and save at the epoch's end.
        self._is_before_epoch_end = (
            not sampler.processed_num or control.should_epoch_stop or control.should_training_stop
        )

    def on_epoch_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        self._is_before_epoch_end = False

    def on_train_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        self._is_training = False

    def commit_if_due(self, trainer: Trainer) -> None:
        """Commits a step that is over, with what it logs, evaluates and saves.

        Raises:
            CollectiveError: a worker was lost, or the generation was aborted.
        """
        if not self._is_due or self._is_before_epoch_end:
            return
        self._is_due = False
        self._commit({name: getattr(trainer, name) for name in _PARTS}, trainer.state, _contents_of(trainer))

    def _commit(self, parts: Dict[str, Any], state: TrainerState, callbacks: Dict[str, Any]) -> None:
        checkpoint = {name: parts[name].state_dict() for name in _PARTS}
        self._state._commit_training({**checkpoint, "trainer": _shared(state, callbacks)})


def _shared(state: TrainerState, callbacks: Dict[str, Any]) -> Dict[str, Any]:
    """What all ranks have of a trainer's state, with the states of its callbacks."""
    shared = {name: value for name, value in asdict(state).items() if name not in _NOT_SHARED}
    return {**shared, "stateful_callbacks": callbacks}


def _copied(model: torch.nn.Module) -> Dict[str, Any]:
    """The content of a model, in main memory."""
    return {
        name: value.detach().to("cpu", copy=True) if isinstance(value, torch.Tensor) else deepcopy(value)
        for name, value in model.state_dict().items()
    }


def _exportable(trainer: Trainer) -> Iterator[Any]:
    """A trainer's callbacks that export their state."""
    return (callback for callback in trainer.callback_handler.callbacks if isinstance(callback, ExportableState))


def _contents_of(trainer: Trainer) -> Dict[str, Any]:
    """The states of a trainer's callbacks, as its own checkpoints have them: by class, several of one class as a list."""
    exported: Dict[str, Any] = TrainerState(stateful_callbacks=[*_exportable(trainer), trainer.control]).stateful_callbacks
    return exported


def _restore_callbacks(trainer: Trainer, contents: Optional[Dict[str, Any]]) -> None:
    """Gives a trainer's callbacks the attributes of a commit; their arguments are the program's. One of which the commit has
    nothing has those that it was first trained with: a callback made outside of the training function has counted since, a
    newcomer's has not."""
    left: Dict[str, List[Any]] = {}
    for name, content in (contents or {}).items():
        left[name] = list(content) if isinstance(content, list) else [content]
    for callback in _exportable(trainer):
        as_given = vars(callback).setdefault("_elastic_node_as_given", deepcopy(callback.state()))
        of_class = left.get(type(callback).__name__)
        # The commit of a job that is resumed may have none of it.
        content = of_class.pop(0) if of_class else as_given
        for name, value in deepcopy(content.get("attributes", {})).items():
            setattr(callback, name, value)


class ElasticTrainer(Trainer):  # type: ignore[misc]  # The types of transformers are not looked at.
    """`transformers.Trainer` over the generation's collectives. Make it, and its arguments, after `init_process_group` in the
    function that `elastic_node.elastic.run` runs. Training ends after `max_steps`; epochs are the sampler's. Where no rank has an
    accelerator, all train on CPUs.

    Several trainings may follow each other in the function, such as one of the head and one of the whole model: each begins with the
    sampler's epoch 0. They are known by their order, so make the same calls of `train` in each generation. After a loss, those that are
    over make no step, and leave their models as they were at their ends.

    `train(resume_from_checkpoint=…)` begins from a checkpoint of an earlier run, at its place in the data; a generation
    that finds the training under way goes on from the state.

    Args:
        elastic_state: of `elastic_node.elastic.run`.
        steps_per_commit: 1 for each step.
        kwargs: of `Trainer`.

    Raises:
        ValueError: the arguments have no `max_steps`; the training data set is an `IterableDataset`, or of another length than
            the data set of the state's sampler. In `train`: an epoch has no whole batch, with `dataloader_drop_last`.
        RuntimeError: this rank would train apart from the others: it has no accelerator, and others have one; or the arguments were
            made before the process group.
        CollectiveError: a worker was lost, or the generation was aborted.
    """

    def __init__(self, elastic_state: TransformersState, steps_per_commit: int = 1, **kwargs: Any) -> None:
        if kwargs.get("model") is not None:
            kwargs["model"] = as_given(kwargs["model"])
        super().__init__(**kwargs)
        if self.args.max_steps <= 0:
            raise ValueError("give TrainingArguments a max_steps: how many steps an epoch has, follows the ranks")
        self._elastic_state = elastic_state
        self._check_train_dataset()
        check_ranks(self.accelerator.num_processes, self.args.device)
        self._commits = CommitStateCallback(elastic_state, steps_per_commit)
        self.add_callback(self._commits)

    def train(self, resume_from_checkpoint: "str | bool | None" = None, *args: Any, **kwargs: Any) -> Any:
        state = self._elastic_state
        if not state._begins():
            resume_from_checkpoint = None
        elif state._number():
            # The training before has left the sampler at its end.
            state.sampler.set_epoch(0)
            state.sampler.processed_num = 0
        result = super().train(resume_from_checkpoint, *args, **kwargs)
        content = state._content() if state._is_finished() else {}
        state._training_ended(content or {"model": _copied(self.model), "trainer": _shared(self.state, _contents_of(self))})
        return result

    def _check_train_dataset(self) -> None:
        """Refuses a training data set whose samples the state's sampler does not count.

        Raises:
            ValueError: it has no places to count, or is of another length than the sampler's.
        """
        dataset, counted = self.train_dataset, len(self._elastic_state.sampler.dataset)
        if dataset is None:
            return
        if isinstance(dataset, IterableDataset) or not hasattr(dataset, "__len__"):
            raise ValueError(
                f"train_dataset is iterable ({type(dataset).__name__}), and the state's sampler cannot count its samples: after "
                "a loss they would begin again. Give a map-style data set, with __len__ and __getitem__; or train by restart, with "
                "transformers.Trainer and its own checkpoints"
            )
        if len(dataset) != counted:
            raise ValueError(
                f"train_dataset has {len(dataset)} samples, and the data set of the state's sampler has {counted}: make the sampler "
                "of the data set that is trained. Where the trainer makes another one of what it is given (packing), prepare it "
                "before, and give the result to both"
            )

    def _run_epoch(self, **kwargs: Any) -> None:
        # The trainer counts once, at its start, when the sampler's epoch can be partly over.
        batches = len(kwargs["train_dataloader"])
        if not batches:
            raise ValueError(
                f"an epoch has no batch of {self._train_batch_size} samples for each of {self.args.world_size} ranks: give fewer "
                "samples for each batch, or leave dataloader_drop_last out"
            )
        updates = max(math.ceil(batches / self.args.gradient_accumulation_steps), 1)
        super()._run_epoch(**{**kwargs, "steps_in_epoch": batches, "num_update_steps_per_epoch": updates})

    def _maybe_log_save_evaluate(self, *args: Any, **kwargs: Any) -> None:
        super()._maybe_log_save_evaluate(*args, **kwargs)
        # Not before: a step that is committed is not made again, and neither would its evaluation be.
        self._commits.commit_if_due(self)

    def _get_train_sampler(self, train_dataset: "Optional[Dataset[Any]]" = None) -> Remaining:
        return Remaining(self._elastic_state.sampler)

    def get_train_dataloader(self) -> "DataLoader[Any]":
        # It may have been replaced since this trainer was made.
        self._check_train_dataset()
        settings = self.accelerator.dataloader_config
        dispatches = settings.dispatch_batches
        # A dispatcher gives all ranks parts of the batches that rank 0's loader makes, of rank 0's samples alone.
        settings.dispatch_batches = False
        try:
            loader: DataLoader[Any] = super().get_train_dataloader()
        finally:
            settings.dispatch_batches = dispatches
        if isinstance(loader.batch_sampler, BatchSamplerShard):
            # The sampler gives each rank its own samples, as many as the others'. A last batch is not filled up: not with
            # those that this generation began with, either.
            loader.batch_sampler.num_processes, loader.batch_sampler.process_index = 1, 0
            loader.batch_sampler.even_batches = False
        return loader

    def _init_training_state(self, *args: Any, **kwargs: Any) -> Tuple[int, int]:
        super()._init_training_state(*args, **kwargs)
        if self._elastic_state._begins():
            self._count_resumed()
        restored = self._elastic_state._content().get("trainer", {})
        for name, value in restored.items():
            # Checkpoints of earlier releases have more parts.
            if name not in _NOT_SHARED:
                setattr(self.state, name, value)
        _restore_callbacks(self, restored.get("stateful_callbacks"))
        # Those of this trainer: its own checkpoints look for each of them.
        self.state.stateful_callbacks = _contents_of(self)
        is_over = self._elastic_state._is_finished() or self.state.global_step >= self.state.max_steps
        # The sampler skips what is done.
        return (self.state.num_train_epochs if is_over else 0), 0

    def _count_resumed(self) -> None:
        """Counts the samples that are done in a checkpoint of the trainer from which the training begins. Its epoch is the place in the
        data: a number of steps would be that of the ranks which made them."""
        if not self.state.global_step:
            return
        sampler = self._elastic_state.sampler
        rest, epoch = math.modf(self.state.epoch or 0.0)
        sampler.set_epoch(int(epoch))
        sampler.processed_num = 0 if self.args.ignore_data_skip else round(rest * len(sampler.dataset))
