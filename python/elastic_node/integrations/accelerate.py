"""Elastic accelerate in process: an accelerator for each generation, around the objects of the state.

::

    sampler = en.ElasticDistributedSampler(data)
    state = en.elastic.TorchState(model=model, optimizer=optimizer, sampler=sampler)

    @en.elastic.run
    def train(state):
        accelerator = ElasticAccelerator()
        loader = DataLoader(data, 16, sampler=sampler)
        model, optimizer, loader = accelerator.prepare(state.model, state.optimizer, loader)
        while sampler.epoch < 10:
            for number, (x, y) in enumerate(loader):
                ...
                sampler.record_batch(number, 16)
                if accelerator.sync_gradients:
                    state.commit()
            sampler.set_epoch(sampler.epoch + 1)
"""

from __future__ import annotations

import os
import warnings
from typing import Any, Iterator, List, Optional

import torch
import torch.distributed as dist
from accelerate import Accelerator
from accelerate.data_loader import get_sampler, prepare_data_loader
from accelerate.state import AcceleratorState, GradientState
from accelerate.utils import extract_model_from_parallel, recursively_apply
from torch.utils.data import DataLoader, Sampler

from .. import _context
from .._objects import allgather_object
from .._sampler import ElasticSampler
from ..torch import init_process_group

__all__ = ["ElasticAccelerator"]


class Remaining(Sampler[int]):
    """The rest of an elastic sampler's epoch. Accelerate's loaders count epochs of their own, from 0 in each
    generation: this sampler ignores them."""

    def __init__(self, sampler: ElasticSampler) -> None:
        self.given = sampler
        #: Number of samples that are given out twice at the end of this pass: one to each of the last ranks.
        self.repeats = 0

    def __iter__(self) -> Iterator[int]:
        self.repeats = -len(self.given.remaining_indices) % self.given.num_replicas
        return iter(self.given)

    def __len__(self) -> int:
        return len(self.given)


#: The variable by which accelerate and transformers are told to take the CPU.
_USE_CPU = "ACCELERATE_USE_CPU"


def as_given(model: torch.nn.Module) -> torch.nn.Module:
    """A module without the changes by the accelerator of a former generation: its forward in mixed precision, around
    which the next one would put another, and the mark that it is prepared."""
    model = extract_model_from_parallel(model, keep_fp32_wrapper=False)
    model.__dict__.pop("_is_accelerate_prepared", None)
    return model


def _forget_generation() -> None:
    """Ranks and groups are in objects of which accelerate has one in each process."""
    AcceleratorState._reset_state(reset_partial_state=True)
    GradientState._reset_state()


_context.on_generation_end(_forget_generation)


def _take_the_cpu() -> None:
    """Has accelerate, and HF's arguments, take the CPU where there is no accelerator. By themselves they take such a process
    for one that trains alone."""
    # torch before 2.6 has no `accelerator`.
    if _USE_CPU not in os.environ and not getattr(torch, "accelerator", torch.cuda).is_available():
        os.environ[_USE_CPU] = "true"


_context.on_generation_begin(_take_the_cpu)


def _refuse_half_a_step() -> None:
    """Refuses a commit between two steps: gradients that wait for the next step are no part of it."""
    if not GradientState().sync_gradients:
        raise RuntimeError(
            "a commit while the accelerator accumulates gradients: after a loss, those of the batches before it would be missing. "
            "Commit where a step is made: if accelerator.sync_gradients: state.commit()"
        )


_context.on_commit(_refuse_half_a_step)


def _warn_of_half_a_step() -> None:
    """Warns of a look at the world between two steps: gradients that wait for the next step are dropped when it changes."""
    if not GradientState().sync_gradients:
        warnings.warn(
            "check_host_updates() while the accelerator accumulates gradients: they are dropped when the world changes, and are missing "
            "from the next step. Call it where a step is made: if accelerator.sync_gradients: state.check_host_updates()",
            RuntimeWarning,
            stacklevel=4,
        )


_context.on_look(_warn_of_half_a_step)


def check_ranks(num_processes: int, device: torch.device) -> None:
    """Refuses a rank that would train apart from the others. All ranks call it.

    Args:
        num_processes: number of ranks that accelerate has found.
        device: where this rank would train.

    Raises:
        RuntimeError: accelerate has not found the generation's ranks; or this rank has no accelerator, and others have one.
        CollectiveError: a worker was lost, or the generation was aborted.
    """
    world = _context.world()
    if num_processes != world.size:
        raise RuntimeError(
            f"rank {world.rank} would train by itself on {device.type}: accelerate has found {num_processes} of {world.size} "
            "ranks. Make the accelerator, or TrainingArguments, in the function that elastic.run runs, after "
            f"init_process_group(); to train on CPUs, set {_USE_CPU}=true on every rank"
        )
    devices: List[str] = allgather_object(device.type)
    others = sorted(set(devices) - {"cpu"})
    if device.type == "cpu" and others:
        raise RuntimeError(
            f"rank {world.rank} has no accelerator, and rank {devices.index(others[0])} trains on {others[0]}: mend this host, or "
            f"take it off; to train on CPUs, set {_USE_CPU}=true on every rank"
        )


def _elastic_sampler_of(loader: "DataLoader[Any]") -> Optional[ElasticSampler]:
    """The elastic sampler by which a loader goes, also within its batch sampler, if any.

    Raises:
        ValueError: accelerate would divide what is a rank's own already, or takes no such loader.
    """
    batches = loader.batch_sampler
    sampler: Any = get_sampler(loader) if batches is not None else getattr(loader.sampler, "sampler", loader.sampler)
    if isinstance(sampler, Remaining):
        # Its batch sampler was prepared in a former generation.
        sampler = sampler.given
    is_elastic = isinstance(sampler, ElasticSampler)
    if isinstance(batches, Iterator) or is_elastic and batches is None:
        raise ValueError(
            "accelerate would divide the samples of this loader among the ranks once more, and most would never be trained: its "
            f"batch_sampler is {type(batches).__name__}. In place of sampler.batches(), or of a loader without a batch_size, "
            "give DataLoader(data, batch_size, sampler=sampler)"
        )
    return sampler if is_elastic else None


class ElasticAccelerator(Accelerator):  # type: ignore[misc]  # Accelerate's types are not looked at.
    """`accelerate.Accelerator` over the generation's collectives. Make it, and prepare the state's objects with it, at the
    beginning of the function that `elastic_node.elastic.run` runs. A loader with an `ElasticSampler`, also within a batch
    sampler, is not divided once more. Where no rank has an accelerator, all train on CPUs.

    With `gradient_accumulation_steps`, a state is committed where a step is made (`sync_gradients`); between two steps its
    `commit` and `save` raise `RuntimeError`.

    Args:
        kwargs: of `Accelerator`.

    Raises:
        RuntimeError: this rank has no accelerator, and others have one; or `ACCELERATE_USE_CPU` forbids the CPU.
        ValueError: in `prepare`, a loader has an iterator as its `batch_sampler`, such as `sampler.batches(16)`; or has an
            `ElasticSampler`, and no batches (``batch_size=None``).
        CollectiveError: a worker was lost, or the generation was aborted.
    """

    def __init__(self, **kwargs: Any) -> None:
        if not dist.is_initialized():
            init_process_group()
        super().__init__(**kwargs)
        check_ranks(self.num_processes, self.device)

    def prepare_model(self, model: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
        return super().prepare_model(as_given(model), *args, **kwargs)

    def prepare_data_loader(
        self, data_loader: "DataLoader[Any]", device_placement: Optional[bool] = None, *args: Any, **kwargs: Any
    ) -> Any:
        sampler = _elastic_sampler_of(data_loader)
        if sampler is None:
            return super().prepare_data_loader(data_loader, device_placement, *args, **kwargs)
        put_on_device = self.device_placement if device_placement is None else device_placement
        prepared = prepare_data_loader(data_loader, self.device, 1, 0, put_on_device=put_on_device)
        prepared.set_sampler(Remaining(sampler))
        self._dataloaders.append(prepared)
        return prepared

    def gather_for_metrics(self, input_data: Any, use_gather_object: bool = False) -> Any:
        """As `Accelerator.gather_for_metrics`: each sample once, whatever the sampler."""
        state = self.gradient_state
        loader = state.active_dataloader
        sampler = None if loader is None else get_sampler(loader)
        if not isinstance(sampler, Remaining) or not state.end_of_dataloader:
            return super().gather_for_metrics(input_data, use_gather_object)
        # Accelerate would cut by the whole data set's length, as if it had dealt the samples out.
        loader.remainder = 0
        gathered = super().gather_for_metrics(input_data, use_gather_object)
        batches = loader.batch_sampler
        is_dropped = batches.drop_last and len(sampler) % batches.batch_size
        first = self.num_processes - (0 if is_dropped else sampler.repeats)

        def each_once(rows: Any) -> Any:
            of_rank, rest = divmod(len(rows), self.num_processes)
            if rest:
                # No row for each sample.
                return rows
            # The rows of a rank follow each other; the last one may be a repeated sample.
            kept = [row for row in range(len(rows)) if row // of_rank < first or (row + 1) % of_rank]
            return rows[kept] if isinstance(rows, torch.Tensor) else [rows[row] for row in kept]

        if use_gather_object:
            return each_once(gathered)
        try:
            return recursively_apply(each_once, gathered, error_on_other_type=True)
        except TypeError:
            # Accelerate has gathered objects, because not all are tensors.
            return each_once(gathered)
