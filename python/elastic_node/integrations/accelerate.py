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
                state.commit()
            sampler.set_epoch(sampler.epoch + 1)
"""

from __future__ import annotations

from typing import Any, Iterator, Optional

import torch
import torch.distributed as dist
from accelerate import Accelerator
from accelerate.data_loader import prepare_data_loader
from accelerate.state import AcceleratorState, GradientState
from accelerate.utils import extract_model_from_parallel
from torch.utils.data import DataLoader, Sampler

from .. import _context
from .._sampler import ElasticSampler
from ..torch import init_process_group

__all__ = ["ElasticAccelerator"]


class Remaining(Sampler[int]):
    """The rest of an elastic sampler's epoch. Accelerate's loaders count epochs of their own, from 0 in each
    generation: this sampler ignores them."""

    def __init__(self, sampler: ElasticSampler) -> None:
        self._sampler = sampler

    def __iter__(self) -> Iterator[int]:
        return iter(self._sampler)

    def __len__(self) -> int:
        return len(self._sampler)


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


class ElasticAccelerator(Accelerator):  # type: ignore[misc]  # Accelerate's types are not looked at.
    """`accelerate.Accelerator` over the generation's collectives. Make it, and prepare the state's objects with it, at the
    beginning of the function that `elastic_node.elastic.run` runs. A loader with an `ElasticSampler` is not divided once
    more.

    Args:
        kwargs: of `Accelerator`.
    """

    def __init__(self, **kwargs: Any) -> None:
        if not dist.is_initialized():
            init_process_group()
        super().__init__(**kwargs)

    def prepare_model(self, model: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
        return super().prepare_model(as_given(model), *args, **kwargs)

    def prepare_data_loader(
        self, data_loader: "DataLoader[Any]", device_placement: Optional[bool] = None, *args: Any, **kwargs: Any
    ) -> Any:
        sampler = data_loader.sampler
        if not isinstance(sampler, ElasticSampler):
            return super().prepare_data_loader(data_loader, device_placement, *args, **kwargs)
        put_on_device = self.device_placement if device_placement is None else device_placement
        prepared = prepare_data_loader(data_loader, self.device, 1, 0, put_on_device=put_on_device)
        prepared.set_sampler(Remaining(sampler))
        self._dataloaders.append(prepared)
        return prepared
