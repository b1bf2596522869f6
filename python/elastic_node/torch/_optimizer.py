"""`DistributedOptimizer`: averages gradients over the ranks, in buckets, while the backward pass goes on."""

from __future__ import annotations

import contextlib
import warnings
import weakref
from typing import (
    TYPE_CHECKING,
    Any,
    Callable,
    ContextManager,
    Dict,
    Iterable,
    Iterator,
    List,
    Optional,
    Sequence,
    Set,
    Tuple,
    Union,
)

import torch

from .. import _reductions
from .._compression import Compression, Compressor
from .._process_sets import ProcessSet, global_process_set
from .._reduce_op import Average, ReduceOp, resolve
from ._buckets import RIGHT_ORDER, Reducer, Settings
from ._labels import Label
from ._shards import ShardReducer

Groups = Union[int, Sequence[Sequence[torch.Tensor]]]


class _Method:
    """A method that stays this class's where the optimiser's attributes, which the distributed one shares, have one of
    the same name. A learning-rate scheduler leaves its `step` there: bound to the optimiser that it was made on, it
    would step without averaging. One that is made on the distributed optimiser wraps this method, and is kept apart.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function
        # torch gives a class whose `step` has no such mark another `step`, with hooks, at each `load_state_dict`. The optimiser's own
        # step, which this one calls, has the hooks.
        function.hooked = True  # type: ignore[attr-defined]
        self.__doc__ = function.__doc__
        self.kept = f"_distributed_{function.__name__}"

    def __get__(self, owner: Any, of_class: Any = None) -> Any:
        if owner is None:
            return self.function
        return owner.__dict__.get(self.kept) or self.function.__get__(owner, of_class)

    def __set__(self, owner: Any, value: Any) -> None:
        owner.__dict__[self.kept] = value

    def __delete__(self, owner: Any) -> None:
        owner.__dict__.pop(self.kept, None)


class _Distributed:
    """The methods of an optimiser that `DistributedOptimizer` has made distributed."""

    _reducer: Union[Reducer, ShardReducer]
    param_groups: List[Dict[str, Any]]

    @property
    def _takes_part(self) -> bool:
        return bool(self._reducer.settings.process_set.included())

    def synchronize(self) -> None:
        """Waits until gradients are averaged, as for clipping them; then call `step` under `skip_synchronize()`.

        Raises:
            CollectiveError: a worker was lost, the generation was aborted, or ranks have other parameters.
            ValueError: on every rank: they have the parameters in another order.
        """
        if self._takes_part:
            self._reducer.include(parameters_of(self.param_groups))
            self._reducer.finish()
        self._is_synchronized = True

    @contextlib.contextmanager
    def skip_synchronize(self) -> Iterator[None]:
        """Within it, `step` takes gradients as they are: after `synchronize`."""
        self._skips = True
        try:
            yield
        finally:
            self._skips = False

    def set_backward_passes_per_step(self, passes: int) -> None:
        """Sets the number of backward passes that add up before a step, from now on."""
        self._reducer.set_passes(passes)

    @property
    def _step_supports_amp_scaling(self) -> bool:
        """torch's `GradScaler` asks for it as it steps: the last moment to refuse gradients that it would unscale while they
        are being averaged, on each rank by its own view of infinite ones.

        Raises:
            RuntimeError: `scaler.step(optimizer)` outside of `skip_synchronize()`.
        """
        if self._takes_part and not self._skips:
            raise RuntimeError(f"a GradScaler would unscale gradients while they are being averaged: {RIGHT_ORDER}")
        return bool(self.__dict__.get("_step_supports_amp_scaling", False))

    @_step_supports_amp_scaling.setter
    def _step_supports_amp_scaling(self, value: bool) -> None:
        # Fused optimisers set it.
        self.__dict__["_step_supports_amp_scaling"] = value

    @property
    def _parameter_names(self) -> Dict[torch.Tensor, str]:
        return self._reducer.settings.names

    @_Method
    def step(self, closure: Optional[Callable[[], Any]] = None) -> Any:
        """Waits until gradients are averaged, and makes the optimiser's step.

        Args:
            closure: computes the loss and its gradients anew, as often as the optimiser asks; the optimiser sees the
                averages of both over all ranks.

        Raises:
            CollectiveError: a worker was lost, or the generation was aborted; no parameter has changed.
        """
        # Torch's schedulers read this, to check that a step came before theirs.
        self._opt_called = True
        step = super(type(self), self).step  # type: ignore[misc]
        if closure is not None:
            return step(lambda: self._averaged(closure))
        if self._skips and self._reducer.is_under_way:
            raise AssertionError("step() under skip_synchronize() without synchronize(): gradients are not averaged")
        if self._is_synchronized and not self._skips and not self._reducer.is_under_way:
            warnings.warn(
                "optimizer.step() called without optimizer.skip_synchronize() context after "
                "optimizer.synchronize(): gradients are averaged already, and taken as they are",
                stacklevel=2,
            )
        elif not self._skips:
            self.synchronize()
        self._is_synchronized = False
        return step()

    def _averaged(self, closure: Callable[[], Any]) -> Any:
        with torch.enable_grad():
            loss = closure()
        self.synchronize()
        self._is_synchronized = False
        if loss is None or not self._takes_part:
            return loss
        value = loss.detach() if isinstance(loss, torch.Tensor) else loss
        settings = self._reducer.settings
        return _reductions.allreduce(value, name=f"{settings.label}.loss", op=Average, process_set=settings.process_set)

    @_Method
    def zero_grad(self, *args: Any, **kwargs: Any) -> None:
        """As the optimiser's.

        Raises:
            AssertionError: gradients are on their way: call it before the backward pass, or after `step`.
        """
        if self._takes_part and self._reducer.launched:
            raise AssertionError(
                "zero_grad() was called between backward() and step() or synchronize(), while gradients are being averaged"
            )
        # Gradients that were not sent do not count, and so neither do their passes.
        forget_passes(self)  # type: ignore[arg-type]
        super(type(self), self).zero_grad(*args, **kwargs)  # type: ignore[misc]

    @_Method
    def load_state_dict(self, state_dict: Dict[str, Any]) -> None:
        """As the optimiser's. The backward pass's counts are forgotten."""
        forget_passes(self)  # type: ignore[arg-type]
        super(type(self), self).load_state_dict(state_dict)  # type: ignore[misc]


if TYPE_CHECKING:

    class ReducingOptimizer(torch.optim.Optimizer):
        """The result of `DistributedOptimizer`: an optimiser of the given class, with these additional methods."""

        _reducer: Union[Reducer, ShardReducer]
        _is_synchronized: bool
        _skips: bool

        def synchronize(self) -> None: ...
        def skip_synchronize(self) -> ContextManager[None]: ...
        def set_backward_passes_per_step(self, passes: int) -> None: ...


def DistributedOptimizer(  # noqa: N802: Horovod's name
    optimizer: torch.optim.Optimizer,
    named_parameters: Optional[Iterable[Tuple[str, torch.Tensor]]] = None,
    compression: Compressor = Compression.none,
    backward_passes_per_step: int = 1,
    op: Optional[ReduceOp] = Average,
    gradient_predivide_factor: float = 1.0,
    num_groups: int = 0,
    groups: Optional[Groups] = None,
    sparse_as_dense: bool = False,
    process_set: ProcessSet = global_process_set,
    shards: Optional[int] = None,
) -> ReducingOptimizer:
    """An optimiser of the same class whose `step` uses gradients that are reduced over all ranks. They are sent in
    buckets as the backward pass yields them, beside it.

    It is the same optimiser with other methods: schedulers and whatever else holds the old one see its state and its
    learning rates. Only the old one's own `step` averages nothing. Parameters that are added or unfrozen later are taken
    in at the next step, which every rank makes alike. Those that are in no group any more are left out, at the latest
    from the next generation on, and so are those that are frozen as it begins.

    Optimisers whose parameters look alike, by their names or else by types and shapes, are told apart by the order in which they are
    made. Make them all before `run`, or all in each call of the training function, in one order on all ranks, or give the parameters
    names that differ.

    Args:
        optimizer: the optimiser; its parameters are in main memory, or on the worker's GPU where the job's collectives
            are NCCL's.
        named_parameters: all parameters with different names, as `model.named_parameters()`. At the first step of each
            generation, ranks compare the order of the parameters: by names if they are given, else by types and shapes.
        compression: `Compression.fp16` sends gradients as numbers of 16 bits.
        backward_passes_per_step: how many backward passes add up before a step; one more raises.
        op: `Average` or `Sum`.
        gradient_predivide_factor: with `Average`, divides by it before the sum, and by size over it afterwards.
        num_groups: Horovod's older name of `groups`.
        groups: how many groups of parameters are sent together, or the groups; by default what fits into 8 MiB.
        sparse_as_dense: sends sparse gradients as dense ones.
        process_set: the ranks that reduce together; on others it is the plain optimiser.
        shards: logical shards of the job: each backward pass is the next of this rank's shards
            (`ShardedSampler.steps`), and gradients are reduced over a fixed tree of shards, so that they have the same
            bits in a world of any size. `Average` is over shards. They are sent once the last shard is there. Parameters
            have no ``.grad`` before: to clip gradients, call `synchronize()`, clip, and `step()` under
            `skip_synchronize()`.

    Raises:
        ValueError: a parameter is on a device that collectives never reach, has no name or another's; the optimiser is
            distributed already; settings that contradict each other.
        NotImplementedError: `Adasum`.
    """
    op = resolve(op)
    if "_reducer" in optimizer.__dict__:
        raise ValueError(
            "this optimizer is distributed already: gradients would be reduced twice. Make it once, before the training function, which "
            "is called again in each generation"
        )
    if gradient_predivide_factor != 1.0 and op is not Average:
        raise ValueError("gradient_predivide_factor goes with op=Average alone")
    if backward_passes_per_step <= 0:
        raise ValueError("backward_passes_per_step must be at least 1")
    if shards is not None:
        _check_shards(shards, compression, backward_passes_per_step, gradient_predivide_factor, process_set)
    parameters = parameters_of(optimizer.param_groups)
    for parameter in parameters:
        if parameter.device.type not in ("cpu", "cuda"):
            raise ValueError(f"a parameter is on {parameter.device}: collectives take CPU and CUDA tensors")
    names = _names(optimizer, parameters, named_parameters)
    are_named = named_parameters is not None
    label = Label(parameters, names if are_named else None, process_set)
    takes_sparse_alone = isinstance(optimizer, torch.optim.SparseAdam)
    settings = Settings(
        op, process_set, compression, gradient_predivide_factor, sparse_as_dense, takes_sparse_alone, names, are_named, label
    )
    of_class = optimizer.__class__
    methods = {name: value for name, value in vars(_Distributed).items() if not name.startswith("__")}
    distributed_class: Any = type(of_class.__name__, (of_class,), methods)
    distributed: ReducingOptimizer = distributed_class.__new__(distributed_class)
    distributed.__dict__ = optimizer.__dict__
    distributed._is_synchronized = distributed._skips = False
    taking_part = parameters if process_set.included() else []
    reference = weakref.ref(distributed)

    def current() -> Optional[List[torch.Tensor]]:
        it = reference()
        return None if it is None else parameters_of(it.param_groups)

    if shards is not None:
        distributed._reducer = ShardReducer(taking_part, shards, settings, current)
        return distributed
    chosen = _groups(groups if groups is not None else num_groups or None, taking_part)
    distributed._reducer = Reducer(taking_part, chosen, backward_passes_per_step, settings, current)
    return distributed


def forget_passes(optimizer: torch.optim.Optimizer) -> None:
    """Forgets the backward passes since the last step, if the optimiser is distributed, or is the plain one of one that is."""
    attributes = optimizer.__dict__
    if "_reducer" in attributes:
        attributes["_reducer"].reset()
        attributes["_is_synchronized"] = False


def _check_shards(
    shards: int, compression: Compressor, passes: int, predivide_factor: float, process_set: ProcessSet
) -> None:
    if shards < 1:
        raise ValueError("shards is a number of at least 1")
    if compression is not Compression.none or passes != 1 or predivide_factor != 1.0:
        raise ValueError(
            "shards goes without compression, backward_passes_per_step and gradient_predivide_factor: a step has a "
            "backward pass for each shard of this rank"
        )
    if process_set is not global_process_set:
        raise ValueError("shards are those of the whole world: leave process_set out")


def parameters_of(param_groups: List[Dict[str, Any]]) -> List[torch.Tensor]:
    return [parameter for group in param_groups for parameter in group["params"]]


def _names(
    optimizer: torch.optim.Optimizer,
    parameters: List[torch.Tensor],
    named_parameters: Optional[Iterable[Tuple[str, torch.Tensor]]],
) -> Dict[torch.Tensor, str]:
    if named_parameters is None:
        return {
            parameter: f"allreduce.noname.{number}.{place}"
            for number, group in enumerate(optimizer.param_groups)
            for place, parameter in enumerate(group["params"])
        }
    named = list(named_parameters)
    if any(not isinstance(pair, tuple) for pair in named):
        raise ValueError("named_parameters are tuples of name and parameter, as model.named_parameters() yields")
    seen: Set[str] = set()
    repeated = [name for name, _ in named if name in seen or seen.add(name)]  # type: ignore[func-returns-value]
    if repeated:
        raise ValueError(f"parameters have the same name in named_parameters: {', '.join(repeated)}")
    names = {parameter: name for name, parameter in named}
    nameless = sum(parameter not in names for parameter in parameters)
    if nameless:
        raise ValueError(f"{nameless} of the optimizer's parameters are not in named_parameters")
    return names


def _groups(groups: Optional[Groups], parameters: List[torch.Tensor]) -> List[List[torch.Tensor]]:
    if groups is None:
        return []
    trained = [parameter for parameter in parameters if parameter.requires_grad]
    if isinstance(groups, int):
        if groups <= 0:
            raise ValueError("groups is a number of at least 1, or a list of lists of tensors")
        size = -(-len(trained) // groups) or 1
        return [trained[start : start + size] for start in range(0, len(trained), size)]
    chosen = [list(group) for group in groups]
    members = [parameter for group in chosen for parameter in group]
    if any(not isinstance(parameter, torch.Tensor) for parameter in members):
        raise ValueError("groups consist of tensors")
    if len({id(parameter) for parameter in members}) != len(members):
        raise ValueError("a parameter is in groups once")
    return chosen
