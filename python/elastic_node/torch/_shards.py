"""Gradients by logical shard: `DistributedOptimizer(shards=…)` has one `ShardReducer` in place of a `Reducer`."""

from __future__ import annotations

import weakref
from typing import Any, Callable, Container, Dict, Iterable, List, Optional, Sequence, Tuple

import torch

from .. import _context
from .._shards import ShardFold, check_shards, reduce_partial
from ._buckets import Settings, divide, order_agreement


class ShardReducer:
    """Takes each backward pass for the next shard of this rank: its gradients are moved out of the parameters, and folded
    over the tree of shards. So a step gives the bits that one rank with all shards gives."""

    def __init__(
        self,
        parameters: Iterable[torch.Tensor],
        shards: int,
        settings: Settings,
        current: Callable[[], Optional[List[torch.Tensor]]],
    ) -> None:
        self.settings, self.shards = settings, shards
        #: Gives the optimiser's parameters as they are now; `None` once the optimiser is gone.
        self.current = current
        self.parameters: List[torch.Tensor] = []
        self.folds: Dict[torch.Tensor, ShardFold] = {}
        self.hooks: Dict[torch.Tensor, Any] = {}
        #: Nothing is launched before the last shard is there.
        self.launched = 0
        self.agreement = order_agreement()
        self._take_up(parameters, ())
        reference = weakref.ref(self)

        def begun() -> None:
            reducer = reference()
            if reducer is not None:
                reducer.begin()

        def ended() -> None:
            reducer = reference()
            if reducer is not None:
                reducer.reset()

        _context.on_generation_begin(begun)
        _context.on_generation_end(ended)

    def begin(self) -> None:
        """A generation begins. Which parameters are frozen is part of the state: a newcomer takes up those that others have unfrozen,
        and others leave out those that they have frozen again, as a newcomer does."""
        parameters = self.current()
        if parameters is not None:
            self._take_up(parameters, ())

    def include(self, parameters: Iterable[torch.Tensor]) -> None:
        """Takes in parameters that were added or unfrozen since, and leaves out those that the optimiser has no more: at the same
        step on all ranks."""
        self._take_up(parameters, self.hooks)

    def _take_up(self, parameters: Iterable[torch.Tensor], kept: Container[torch.Tensor]) -> None:
        """Has these parameters: all but those that are frozen and not kept."""
        reference = weakref.ref(self)

        def ready(parameter: torch.Tensor) -> None:
            reducer = reference()
            if reducer is not None:
                reducer.ready(parameter)

        self.parameters = [parameter for parameter in parameters if parameter.requires_grad or parameter in kept]
        for parameter in self.parameters:
            if parameter not in self.hooks:
                self.hooks[parameter] = parameter.register_post_accumulate_grad_hook(ready)
        here = set(self.parameters)
        for parameter in [parameter for parameter in self.hooks if parameter not in here]:
            self.hooks.pop(parameter).remove()
            self.folds.pop(parameter, None)

    @property
    def is_under_way(self) -> bool:
        """Whether a gradient has come since the last step."""
        return bool(self.folds)

    def set_passes(self, passes: int) -> None:
        raise ValueError("with shards, a step has a backward pass for each shard of this rank: leave the number out")

    def reset(self) -> None:
        self.folds = {}

    def ready(self, parameter: torch.Tensor) -> None:
        """A gradient is there: of the next shard."""
        gradient = parameter.grad
        if gradient is None:
            return
        if gradient.is_sparse:
            gradient = gradient.to_dense()
        if parameter not in self.folds:
            self.folds[parameter] = self._fold()
        parameter.grad = None
        try:
            self.folds[parameter].add(gradient)
        except ValueError as error:
            raise AssertionError(
                f"more backward passes than this rank has shards before step(): {error}. Make one for each of "
                "`ShardedStep.shards`"
            ) from error

    def finish(self) -> None:
        """Reduces the gradients of all shards."""
        check_shards(self.shards)
        _context.carry_shards(_context.shard_deal(self.shards))
        try:
            self.settings.label.take()
            self.agreement.check(len(self.parameters), lambda: self.settings.items(self.parameters))
            for parameter, fold in self.folds.items():
                if fold.next != fold.end:
                    name = self.settings.names.get(parameter, "a parameter")
                    raise AssertionError(
                        f"step() while {fold.end - fold.next} of this rank's shards have no gradient of {name}: make a "
                        "backward pass for each of `ShardedStep.shards`, with gradients of the same parameters"
                    )
            with torch.no_grad():
                for number, parameters in enumerate(divide(self.parameters, None)):
                    self._reduce(number, parameters)
        finally:
            self.reset()

    def _reduce(self, number: int, parameters: Sequence[torch.Tensor]) -> None:
        nodes = len(_context.shard_deal(self.shards).nodes_of(_context.world().rank))
        rows: List[Tuple[torch.Tensor, ...]] = []
        for parameter in parameters:
            fold = self.folds.get(parameter)
            partial = fold.partial if fold else [torch.zeros_like(parameter)] * nodes
            rows.append(tuple(array.reshape(-1) for array in partial))
        flat = [torch.cat(node) for node in zip(*rows)]
        whole = reduce_partial(flat, self.shards, self.settings.op, f"shards.{number}")
        start = 0
        for parameter in parameters:
            end = start + parameter.numel()
            if parameter.requires_grad:
                parameter.grad = whole[start:end].view(parameter.shape).clone()
            start = end

    def _fold(self) -> ShardFold:
        rank, world = _context.world().rank, _context.world().size
        if world > self.shards:
            raise ValueError(
                f"a world of {world} cannot carry {self.shards} shards: cap the world by --max-np {self.shards}, or by "
                f"--shards {self.shards}"
            )
        return ShardFold(_context.shard_deal(self.shards), rank)
