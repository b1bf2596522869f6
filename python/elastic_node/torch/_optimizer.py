"""`DistributedOptimizer`: averages gradients over the ranks, in buckets, while the backward pass goes on."""

from __future__ import annotations

import weakref
from typing import Any, Dict, Iterable, List, Optional, Tuple, Union

import torch

from .. import _context, _exchanges, _objects, _reductions
from .._handle import Handle
from .._reductions import Average
from .._process_sets import ProcessSet, global_process_set

#: Bytes of gradients that travel together.
BUCKET_BYTES = 8 << 20


class _Bucket:
    """Gradients that travel together: of one type, on one device, in one buffer."""

    def __init__(self, parameters: List[torch.Tensor]) -> None:
        self.parameters = parameters
        count = sum(parameter.numel() for parameter in parameters)
        self.flat = torch.zeros(count, dtype=parameters[0].dtype, device=parameters[0].device)
        self.parts = []
        start = 0
        for parameter in parameters:
            end = start + parameter.numel()
            self.parts.append(self.flat[start:end].view(parameter.shape))
            start = end
        self.missing = len(parameters)
        self.handle: Optional[Handle] = None

    def launch(self, op: str, process_set: ProcessSet) -> None:
        for parameter, part in zip(self.parameters, self.parts):
            if parameter.grad is None:
                part.zero_()
            else:
                part.copy_(parameter.grad)
        self.handle = _reductions.allreduce_async_(self.flat, op=op, process_set=process_set)

    def land(self) -> None:
        assert self.handle is not None
        self.handle.wait()
        for parameter, part in zip(self.parameters, self.parts):
            if parameter.grad is None:
                parameter.grad = part.clone()
            else:
                parameter.grad.copy_(part)

    def reset(self, passes: int) -> None:
        self.handle = None
        self.missing = len(self.parameters) * passes


class _Reducer:
    """Buckets of an optimiser's parameters. They are launched in one order on all ranks: the last parameters first,
    whose gradients are there first."""

    def __init__(
        self,
        parameters: Iterable[torch.Tensor],
        op: str,
        process_set: ProcessSet,
        passes: int,
    ) -> None:
        self.op, self.process_set, self.passes = op, process_set, passes
        self.buckets: List[_Bucket] = []
        self.of: Dict[torch.Tensor, _Bucket] = {}
        self.launched = 0
        trained = [parameter for parameter in parameters if parameter.requires_grad]
        for parameters_of_bucket in _divide(list(reversed(trained))):
            bucket = _Bucket(parameters_of_bucket)
            self.buckets.append(bucket)
            for parameter in parameters_of_bucket:
                self.of[parameter] = bucket
        self.reset()
        reference = weakref.ref(self)

        def ready(parameter: torch.Tensor) -> None:
            reducer = reference()
            if reducer is not None:
                reducer.ready(parameter)

        def ended() -> None:
            reducer = reference()
            if reducer is not None:
                reducer.reset()

        self.hooks = [
            parameter.register_post_accumulate_grad_hook(ready)  # type: ignore[attr-defined]
            for parameter in trained
        ]
        # What an aborted step has launched says nothing about the next one.
        _context.on_generation_end(ended)

    def reset(self) -> None:
        self.launched = 0
        for bucket in self.buckets:
            bucket.reset(self.passes)

    def ready(self, parameter: torch.Tensor) -> None:
        """A gradient is there."""
        self.of[parameter].missing -= 1
        while self.launched < len(self.buckets) and self.buckets[self.launched].missing <= 0:
            self.launch_next()

    def launch_next(self) -> None:
        self.buckets[self.launched].launch(self.op, self.process_set)
        self.launched += 1

    def finish(self) -> None:
        """Launches what is left, and waits for all."""
        try:
            while self.launched < len(self.buckets):
                self.launch_next()
            for bucket in self.buckets:
                bucket.land()
        finally:
            self.reset()


def _divide(parameters: List[torch.Tensor]) -> List[List[torch.Tensor]]:
    """In order, into buckets of one type, on one device, and of about `BUCKET_BYTES`."""
    buckets: List[List[torch.Tensor]] = []
    size = 0
    for parameter in parameters:
        size_bytes = parameter.numel() * parameter.element_size()
        last = buckets[-1][0] if buckets else None
        is_like = last is not None and (last.dtype, last.device) == (parameter.dtype, parameter.device)
        if is_like and size + size_bytes <= BUCKET_BYTES:
            buckets[-1].append(parameter)
            size += size_bytes
        else:
            buckets.append([parameter])
            size = size_bytes
    return buckets


class _Distributed:
    """The methods of an optimiser that `DistributedOptimizer` has made distributed."""

    _reducer: _Reducer

    def synchronize(self) -> None:
        """Waits until gradients are averaged. `step` does that, unless it was done already."""
        self._reducer.finish()
        self._synchronized = True

    def step(self, closure: Any = None) -> Any:
        """Waits until gradients are averaged, and makes the optimiser's step.

        Raises:
            CollectiveError: a worker was lost, or the generation was aborted; no parameter has changed.
            ValueError: a closure, which would need gradients anew.
        """
        if closure is not None:
            raise ValueError("a distributed optimiser takes no closure: its gradients come from backward()")
        if not getattr(self, "_synchronized", False):
            self.synchronize()
        self._synchronized = False
        return super(type(self), self).step()  # type: ignore[misc]


def DistributedOptimizer(  # noqa: N802: Horovod's name
    optimizer: torch.optim.Optimizer,
    named_parameters: Optional[Iterable[Tuple[str, torch.Tensor]]] = None,
    backward_passes_per_step: int = 1,
    op: str = Average,
    process_set: ProcessSet = global_process_set,
) -> torch.optim.Optimizer:
    """An optimiser of the same class whose `step` uses gradients that are reduced over all ranks. They are sent in
    buckets as the backward pass yields them, beside it.

    Args:
        optimizer: the optimiser; its parameters are in main memory, or on the worker's GPU where the job's collectives
            are NCCL's.
        named_parameters: for Horovod's sake.
        backward_passes_per_step: how many backward passes add up before a step.
        op: `Average` or `Sum`.
        process_set: the ranks that reduce together.

    `optimizer.synchronize()` waits for the gradients before `step`, as for clipping them.

    Raises:
        ValueError: a parameter is on a device that collectives never reach.
    """
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    for parameter in parameters:
        if parameter.device.type not in ("cpu", "cuda"):
            raise ValueError(f"a parameter is on {parameter.device}: collectives take CPU and CUDA tensors")
    of_class = optimizer.__class__
    methods = {name: value for name, value in vars(_Distributed).items() if not name.startswith("__")}
    distributed_class = type(of_class.__name__, (of_class,), methods)
    distributed = distributed_class.__new__(distributed_class)
    # The same optimiser: whoever holds the old one, such as a scheduler, sees its state.
    distributed.__dict__ = optimizer.__dict__
    distributed._reducer = _Reducer(parameters, op, process_set, backward_passes_per_step)
    return distributed


def broadcast_parameters(
    params: Union[Dict[str, Any], Iterable[Tuple[str, Any]]], root_rank: int = 0
) -> None:
    """Takes over `root_rank`'s parameters, in place: of a `state_dict()` or of `named_parameters()`.

    Raises:
        CollectiveError: a worker was lost, or the generation was aborted.
    """
    items = params.items() if isinstance(params, dict) else params
    with torch.no_grad():
        for _name, value in items:
            if isinstance(value, torch.Tensor):
                received = _exchanges.broadcast(value, root_rank)
                value.copy_(received)


def broadcast_optimizer_state(optimizer: torch.optim.Optimizer, root_rank: int = 0) -> None:
    """Takes over the state of `root_rank`'s optimiser.

    Raises:
        CollectiveError: a worker was lost, or the generation was aborted.
    """
    state = _objects.broadcast_object(optimizer.state_dict(), root_rank)
    if _context.place()[0] != root_rank:
        optimizer.load_state_dict(state)
