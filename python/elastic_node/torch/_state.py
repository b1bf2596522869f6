"""`TorchState`: everything of a torch training that must survive, as one unit."""

from __future__ import annotations

from typing import TYPE_CHECKING, AbstractSet, Any, Dict, List, Optional, Tuple

import torch

from .. import _agreement, _codec, _holders, _torch_tensors
from ..elastic import ObjectState
from . import _groups, _in_place, _loading, _optimizer

if TYPE_CHECKING:
    from .. import _native


class TorchState(ObjectState):
    """State of a torch training: `TorchState(model=model, optimizer=optimizer, epoch=0, batch=0)`.

    Modules, optimisers, learning-rate schedulers, gradient scalers, `torch.Generator`s and samplers stay the objects
    that they are, and are given their content, also in lists, tuples and dictionaries, where every rank has them in the same
    places. So does a tensor that requires a gradient and is no result of others, as an attribute. An optimiser within an object of the
    program's own is refused, and so is a parameter of the state's modules and optimisers in such an object, or by itself in a list:
    its copies would be other ones. Other values (numbers, tensors, lists) are replaced, so reach them
    through the state. A tensor comes back with its class and `requires_grad`, as another object. All of it is saved,
    restored and taken over together, so weights never run ahead of counters.

    Gradients are no part of it. When the state goes back or is taken over, and whenever a generation begins, those of all
    parameters of its modules and optimisers become `None`, and what its optimisers, also distributed ones, and its gradient
    scalers know of the unfinished step is forgotten. So it is, too, on ranks that keep their live state in a planned change: a
    newcomer has no gradients. A program that adds up the gradients of several backward passes commits, and calls
    `check_host_updates`, behind its steps: between them, the gradients since the last step are dropped when the world changes.

    The mode of a module, training or evaluation, the momentum of a batch normalisation, and which parameters are frozen
    (`requires_grad`) are part of the state, for each module in it. An optimiser's state keeps the types of its tensors, where torch casts them to those of the parameters. Its groups, and the
    lists and dictionaries of a scheduler, stay the objects that they are.

    A group that the program adds in training (`add_param_group`) is dropped when the state goes back to a commit before: the program
    adds it again. A newcomer has not added it, and cannot take a later commit over: make all groups before `run`, and freeze their
    parameters until they are to be trained.

    An optimiser within another one, as of SAM, is saved with it. A wrapper with a `state_dict` of its own that leaves a part out is
    refused.

    A module in `DistributedDataParallel` is saved as the module within. Tensors on other devices are saved in main
    memory. Of a module whose `state_dict()` leaves something out, that is left out here, too: a metric of torchmetrics has an empty
    one until `metric.persistent(True)`.

    Args:
        model: a module, or several by other names.
        optimizer: its optimiser, or several by other names.
        kwargs: everything else.

    Raises:
        TypeError: from `run`, or from a commit where it shows later: an optimiser around others leaves a part of them out; a
            parameter of the state's modules and optimisers is within another object of it; it has a DTensor, as a module that
            is sharded by FSDP2 has, or a sampler within an object of the program's own.
        ValueError: from `run`: an optimiser has other groups than in the state that training goes on from.
    """

    #: The groups of its optimisers as `run` began; `None` outside of it.
    _groups_begun: Optional[_groups.Begun] = None

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

    def _stays(self, value: Any, content: Any) -> bool:
        is_trained = isinstance(value, torch.Tensor) and value.requires_grad and value.is_leaf
        return (is_trained and isinstance(content, torch.Tensor)) or super()._stays(value, content)

    def _check_encodable(self) -> None:
        self._check_complete()
        super()._check_encodable()

    def _refuse_steppers(self) -> None:
        """None is refused: `_forget_step` forgets what a broken step leaves in them."""

    def _check_copies(self) -> None:
        trained = {id(parameter): name for parameter, name in self._names_of_parameters().items()}
        for value in map(self.__dict__.get, self._public()):
            trained.pop(id(value), None)
        for name in self._public() if trained else ():
            if not self._is_holder(self.__dict__[name]):
                _codec.check_copyable(name, self._captured(name, self.__dict__[name]), trained)

    def _check_complete(self) -> None:
        for part, optimizer in self._optimizers():
            _loading.check_complete(part, optimizer)

    def _optimizers(self) -> List[Tuple[str, torch.optim.Optimizer]]:
        return [(part, holder) for part, holder in self._holders_with_names() if isinstance(holder, torch.optim.Optimizer)]

    def _names_of_parameters(self) -> Dict[torch.Tensor, str]:
        """The parameters of the state's modules and optimisers, and their names."""
        names: Dict[torch.Tensor, str] = {}
        for part, holder in self._holders_with_names():
            if isinstance(holder, torch.optim.Optimizer):
                for place, parameter in enumerate(_optimizer.parameters_of(holder.param_groups)):
                    names.setdefault(parameter, f"number {place} of {part}")
        return {**names, **self._names_in_modules()}

    def _names_in_modules(self) -> Dict[torch.Tensor, str]:
        """The parameters of the state's modules, and their names."""
        return {
            parameter: f"{part}.{name}"
            for part, holder in self._modules()
            for name, parameter in holder.named_parameters()
        }

    def _holders_with_names(self) -> List[Tuple[str, Any]]:
        """The objects that stay, each with the name of the attribute that has it."""
        return [
            (part, holder)
            for part in self._public()
            for holder in _holders.found({part: self.__dict__[part]}, self._is_holder)
        ]

    def _content_of(self, holder: Any) -> Any:
        if isinstance(holder, torch.Generator):
            return holder.get_state()
        if isinstance(holder, torch.nn.parallel.DistributedDataParallel):
            return holder.module.state_dict()
        if isinstance(holder, torch.optim.Optimizer):
            return _loading.content_of(holder, {id(other) for _, other in self._optimizers()})
        return super()._content_of(holder)

    def _give(self, holder: Any, content: Any) -> None:
        if isinstance(holder, torch.Generator):
            # The generator needs a tensor of its own: it takes a copy.
            holder.set_state(content.clone())
        elif isinstance(holder, torch.nn.parallel.DistributedDataParallel):
            holder.module.load_state_dict(content)
        elif isinstance(holder, torch.Tensor):
            # An optimiser, and variables of the program, know this object.
            with torch.no_grad():
                if holder.shape == content.shape:
                    holder.copy_(content)
                else:
                    holder.data = content.detach().to(holder.device, holder.dtype)
        elif isinstance(holder, torch.optim.Optimizer):
            self._give_optimizer(holder, content)
        elif isinstance(holder, torch.optim.lr_scheduler.LRScheduler):
            _loading.give_scheduler(holder, content)
        else:
            super()._give(holder, content)

    def _give_optimizer(self, optimizer: torch.optim.Optimizer, content: Any) -> None:
        if self._groups_begun is not None:
            self._groups_begun.drop_added(optimizer, content)
        try:
            _loading.give_optimizer(optimizer, content)
        except ValueError as error:
            name = next((part for part, held in self._optimizers() if held is optimizer), "")
            refusal = _groups.refusal(name, optimizer, content)
            if refusal is None:
                raise
            raise ValueError(refusal) from error

    def _begin_run(self) -> None:
        super()._begin_run()
        self._groups_begun = _groups.Begun(optimizer for _, optimizer in self._optimizers())

    def _end_run(self) -> None:
        super()._end_run()
        self._groups_begun = None

    def capture(self) -> Dict[str, Any]:
        self._check_complete()
        return super().capture()

    def _forget_step(self) -> None:
        super()._forget_step()
        attributes = {name: self.__dict__[name] for name in self._public()}
        own = [value for value in attributes.values() if isinstance(value, torch.Tensor)]
        _torch_tensors.drop_gradients(value for value in own if self._stays(value, value))
        for holder in _holders.found(attributes, self._is_holder):
            _forget_step_of(holder)

    def _alike(self) -> List[_agreement.Item]:
        """And the order of the optimisers' parameters, whose state is counted by their places."""
        values = {part: self.__dict__[part] for part in self._public()}
        own = {value: part for part, value in values.items() if isinstance(value, torch.Tensor)}
        names = {**own, **self._names_in_modules()}
        orders = [
            (names.get(parameter), f"at place {place} of {part}")
            for part, holder in self._holders_with_names()
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


def _forget_step_of(holder: Any) -> None:
    """Forgets what an unfinished step has left in an optimiser or a gradient scaler."""
    if isinstance(holder, torch.optim.Optimizer):
        _torch_tensors.drop_gradients(_optimizer.parameters_of(holder.param_groups))
        _optimizer.forget_passes(holder)
    elif isinstance(holder, torch.amp.GradScaler) and holder.is_enabled():
        # Else it takes the next gradients for ones that it has divided by its scale already.
        holder._per_optimizer_states.clear()
