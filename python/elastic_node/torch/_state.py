"""`TorchState`: everything of a torch training that must survive, as one unit."""

from __future__ import annotations

from typing import TYPE_CHECKING, AbstractSet, Any, Dict, Iterable, List, Optional

import torch

from .. import _agreement, _codec, _holders
from ..elastic import ObjectState
from . import _in_place, _optimizer

if TYPE_CHECKING:
    from .. import _native


class TorchState(ObjectState):
    """State of a torch training: `TorchState(model=model, optimizer=optimizer, epoch=0, batch=0)`.

    Modules, optimisers, learning-rate schedulers, gradient scalers, `torch.Generator`s and samplers stay the objects
    that they are, and are given their content, also in lists, tuples and dictionaries, where every rank has them in the same
    places. An optimiser within an object of the program's own is refused: its copies would step other parameters. Other values (numbers, tensors, lists) are replaced, so reach them
    through the state. A tensor comes back with its class and `requires_grad`, as another object. All of it is saved,
    restored and taken over together, so weights never run ahead of counters.

    Gradients are no part of it. When the state goes back or is taken over, those of all parameters of its modules and
    optimisers become `None`, and what its optimisers, also distributed ones, and its gradient scalers know of the
    unfinished step is forgotten. All of that stays where live state is kept.

    A module in `DistributedDataParallel` is saved as the module within. Tensors on other devices are saved in main
    memory. Of a module whose `state_dict()` leaves something out, that is left out here, too: a metric of torchmetrics has an empty
    one until `metric.persistent(True)`.

    Args:
        model: a module, or several by other names.
        optimizer: its optimiser, or several by other names.
        kwargs: everything else.
    """

    def __init__(
        self,
        model: Optional[torch.nn.Module] = None,
        optimizer: Optional[torch.optim.Optimizer] = None,
        **kwargs: object,
    ) -> None:
        given = {"model": model, "optimizer": optimizer}
        super().__init__(**{name: value for name, value in given.items() if value is not None}, **kwargs)

    def _is_holder(self, value: Any) -> bool:
        return isinstance(value, torch.Generator) or super()._is_holder(value)

    def _content_of(self, holder: Any) -> Any:
        if isinstance(holder, torch.Generator):
            return holder.get_state()
        if isinstance(holder, torch.nn.parallel.DistributedDataParallel):
            return holder.module.state_dict()
        return super()._content_of(holder)

    def _give(self, holder: Any, content: Any) -> None:
        if isinstance(holder, torch.Generator):
            # The generator needs a tensor of its own: it takes a copy.
            holder.set_state(content.clone())
        elif isinstance(holder, torch.nn.parallel.DistributedDataParallel):
            holder.module.load_state_dict(content)
        else:
            super()._give(holder, content)

    def apply(self, content: Dict[str, Any]) -> None:
        super().apply(content)
        # A step that was broken off has left gradients. The next backward pass would add to them.
        attributes = {name: self.__dict__[name] for name in self._public()}
        for holder in _holders.found(attributes, self._is_holder):
            _forget_step(holder)

    def _alike(self) -> List[_agreement.Item]:
        """And the order of the optimisers' parameters, whose state is counted by their places."""
        parts = {name: list(_holders.found({name: self.__dict__[name]}, self._is_holder)) for name in self._public()}
        names: Dict[torch.Tensor, str] = {
            parameter: f"{part}.{name}"
            for part, holders in parts.items()
            for holder in holders
            if isinstance(holder, torch.nn.Module)
            for name, parameter in holder.named_parameters()
        }
        orders = [
            (names.get(parameter), f"at place {place} of {part}")
            for part, holders in parts.items()
            for holder in holders
            if isinstance(holder, torch.optim.Optimizer)
            for place, parameter in enumerate(_optimizer.parameters_of(holder.param_groups))
        ]
        return [*super()._alike(), *orders]

    def _in_place(self, content: Dict[str, Any]) -> AbstractSet[int]:
        return _in_place.tensors_in(content, self.__dict__)

    def _apply_blocks(self, header: bytes, blocks: List[_native.CommitBlock]) -> None:
        content = _codec.decode_pending(header, blocks)
        if _in_place.fill(content, self.__dict__) < len(_codec.marked_in_place(header)):
            # An object that only itself knows has one of these tensors, too.
            return super()._apply_blocks(header, blocks)
        self.apply(content)


def _forget_step(holder: Any) -> None:
    """Forgets what an unfinished step has left in a module, an optimiser or a gradient scaler."""
    if isinstance(holder, torch.nn.Module):
        _drop_gradients(holder.parameters())
    elif isinstance(holder, torch.optim.Optimizer):
        _drop_gradients(_optimizer.parameters_of(holder.param_groups))
        _optimizer.forget_passes(holder)
    elif isinstance(holder, torch.amp.GradScaler) and holder.is_enabled():
        # Else it takes the next gradients for ones that it has divided by its scale already.
        holder._per_optimizer_states.clear()


def _drop_gradients(parameters: Iterable[torch.Tensor]) -> None:
    for parameter in parameters:
        parameter.grad = None
