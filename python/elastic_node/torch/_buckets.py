"""Gradients on their way: in buckets, launched in one order on all ranks as the backward pass yields them.
`DistributedOptimizer` has one `Reducer`."""

from __future__ import annotations

import contextlib
import warnings
import weakref
from dataclasses import dataclass
from typing import Any, Callable, Container, Dict, Iterable, List, Optional, Sequence, Set, Tuple

import torch

from .. import _agreement, _arrays, _context, _native, _reductions
from .._compression import Compressor
from .._handle import Handle
from .._process_sets import ProcessSet, group_of
from .._reduce_op import ReduceOp, Sum
from ._labels import Label
from ._sparse import sparse_allreduce_async

#: Size of a bucket: bytes of gradients that are sent together.
BUCKET_BYTES = 8 << 20

#: How gradients are changed before a step, in words.
RIGHT_ORDER = (
    "call optimizer.synchronize(), then clip (or scaler.unscale_(optimizer)), and step within optimizer.skip_synchronize()"
)

_HALF_COMMITTED = (
    "a commit between two steps: the gradients of the backward passes since the last step are no part of it, and are missing "
    "from the next step after a loss or a change of the world. Commit behind optimizer.step()"
)
_HALF_LOOKED = (
    "check_host_updates() between two steps: the gradients of the backward passes since the last step are dropped when the world "
    "changes, and are missing from the next step. Call it behind optimizer.step()"
)


@dataclass(frozen=True)
class Settings:
    """Settings of the reduction of gradients."""

    op: ReduceOp
    process_set: ProcessSet
    compression: Compressor
    predivide_factor: float
    sparse_as_dense: bool
    #: Whether the optimiser takes no dense gradients: those that no rank knows yet are sparse.
    takes_sparse_alone: bool
    #: Their names, or stand-ins.
    names: Dict[torch.Tensor, str]
    are_named: bool
    #: The beginning of the names of the optimiser's calls.
    label: Label

    def items(self, parameters: Iterable[torch.Tensor]) -> List[_agreement.Item]:
        """The parameters, as ranks compare them. One that was added later has a name only where the optimiser was made
        since."""
        given = list(parameters)
        return [*in_order(given, self.names if self.are_named else {}), *self.label.items(given)] if given else []


def in_order(parameters: Iterable[torch.Tensor], names: Dict[torch.Tensor, str]) -> List[_agreement.Item]:
    """Parameters in their order, as ranks compare them: by these names as far as they have one, and by types and shapes."""
    return [
        (names.get(parameter), f"{_arrays.described(parameter)} as number {number}")
        for number, parameter in enumerate(parameters)
    ]


def order_agreement() -> _agreement.Agreement:
    """For the order in which an optimiser's gradients are sent. Gradients of equal shapes would be averaged with those
    of other parameters without a word."""
    return _agreement.Agreement(
        "the order of the gradients that DistributedOptimizer averages",
        "Give the optimizer its parameters in one order on all ranks, as of model.parameters() (a set has another "
        "order in each process), and groups= likewise; make several optimizers in one order, too; and freeze the same parameters "
        "on all ranks (requires_grad is part of the state for the modules in it)",
    )


#: The ranks of a process set, and the name of a call among them.
_CallName = Tuple[Optional[Tuple[int, ...]], str]

#: Waits for the calls of the bucket of this name that was launched last, until it has landed: a step may be given up.
_under_way: Dict[_CallName, List[Callable[[], Any]]] = {}

# They end with the generation.
_context.on_generation_end(_under_way.clear)


class Bucket:
    """Gradients that travel together: of one type, on one device, in one buffer."""

    def __init__(self, parameters: List[torch.Tensor], name: str, settings: Settings) -> None:
        self.parameters, self.name, self.settings = parameters, name, settings
        self.missing = len(parameters)
        #: The buffer, and its part for each parameter, known at the first launch. Gradients of the others are sent sparse.
        self.flat: Optional[torch.Tensor] = None
        self.parts: Dict[torch.Tensor, torch.Tensor] = {}
        self.handle: Optional[Handle[torch.Tensor]] = None
        self.context: Any = None
        self.sparse: Dict[torch.Tensor, Callable[[], torch.Tensor]] = {}
        #: The dense gradients that were sent, and torch's counts of their changes at that time.
        self.sent: Dict[torch.Tensor, Tuple[torch.Tensor, int]] = {}
        #: Whether it is on its way, and waits for its calls.
        self.is_launched = False
        self.waits: List[Callable[[], Any]] = []

    @property
    def _call_name(self) -> _CallName:
        ranks = self.settings.process_set.ranks
        return None if ranks is None else tuple(ranks), self.name

    def launch(self) -> None:
        # The name is free once its former calls are done; who waits for their results is told of their errors.
        for wait in _under_way.pop(self._call_name, []):
            with contextlib.suppress(_native.CollectiveError):
                wait()
        self.is_launched = True
        flat = self.flat
        if flat is None:
            flat = self._divide([parameter for parameter in self.parameters if self.is_sparse(parameter)])
        for parameter, part in self.parts.items():
            gradient = parameter.grad
            if gradient is None:
                part.zero_()
            elif gradient.is_sparse:
                part.copy_(gradient.to_dense())
            else:
                part.copy_(gradient)
                self.sent[parameter] = gradient, gradient._version
        settings = self.settings
        if self.parts:
            compressed, self.context = settings.compression.compress(flat)
            factor = settings.predivide_factor
            self.handle = _reductions.allreduce_async_(
                compressed,
                name=self.name,
                op=settings.op,
                prescale_factor=1.0 / factor,
                postscale_factor=factor,
                process_set=settings.process_set,
            )
        for parameter in self.parameters:
            if parameter not in self.parts:
                self.sparse[parameter] = self._launch_sparse(parameter, f"{self.name}.{len(self.sparse)}")
        self.waits = [*([self.handle.wait] if self.handle is not None else []), *self.sparse.values()]
        _under_way[self._call_name] = self.waits

    def is_sparse(self, parameter: torch.Tensor) -> Optional[bool]:
        """Whether a parameter's gradient is sent sparse, as far as this rank knows it: of its former gradients, or this one."""
        if self.flat is not None:
            return parameter not in self.parts
        if self.settings.sparse_as_dense:
            return False
        if parameter.grad is None:
            return True if self.settings.takes_sparse_alone else None
        return parameter.grad.is_sparse

    def agree(self, sparse: Set[torch.Tensor]) -> None:
        """Has these gradients sent sparse, and the others dense, unless they are on their way."""
        chosen = [parameter for parameter in self.parameters if parameter in sparse]
        if not self.is_launched and (self.flat is None or chosen != [it for it in self.parameters if it not in self.parts]):
            self._divide(chosen)

    def _divide(self, sparse: Sequence[torch.Tensor]) -> torch.Tensor:
        """Makes the buffer, for the parameters that are not these."""
        apart = set(sparse)
        dense = [parameter for parameter in self.parameters if parameter not in apart]
        flat = self.parameters[0].new_zeros(sum(parameter.numel() for parameter in dense))
        self.flat, self.parts, start = flat, {}, 0
        for parameter in dense:
            end = start + parameter.numel()
            self.parts[parameter] = flat[start:end].view(parameter.shape)
            start = end
        return flat

    def _launch_sparse(self, parameter: torch.Tensor, name: str) -> Callable[[], torch.Tensor]:
        gradient, settings = parameter.grad, self.settings
        if gradient is None:
            gradient = torch.sparse_coo_tensor(
                torch.empty((1, 0), dtype=torch.int64, device=parameter.device),
                parameter.new_empty((0, *parameter.shape[1:])),
                parameter.shape,
                device=parameter.device,
            )
        return sparse_allreduce_async(gradient, name, settings.op, settings.process_set)

    def check_unchanged(self) -> None:
        """Refuses gradients that were changed since they were sent: the averages would take their place without a word.

        Raises:
            RuntimeError: they were, as by `clip_grad_norm_`.
        """
        for parameter, (gradient, changes) in self.sent.items():
            if parameter.grad is not None and (parameter.grad is not gradient or gradient._version != changes):
                name = self.settings.names.get(parameter, "a parameter")
                raise RuntimeError(
                    f"the gradient of {name} was changed between backward() and step(), while it was being averaged: {RIGHT_ORDER}"
                )

    def land(self) -> None:
        if self.handle is not None:
            flat = self.settings.compression.decompress(self.handle.wait(), self.context)
            self.handle = None
            if self.flat is not None and flat is not self.flat:
                self.flat.copy_(flat)
        for parameter, part in self.parts.items():
            if parameter.grad is None:
                # A frozen parameter has no gradient, as in one process; others take the gradients of other ranks.
                parameter.grad = part.clone() if parameter.requires_grad else None
            elif parameter.grad.is_sparse:
                parameter.grad = part.to_sparse(parameter.grad.sparse_dim())
            else:
                parameter.grad.copy_(part)
        for parameter, wait in self.sparse.items():
            gradient = wait()
            if self.settings.takes_sparse_alone and gradient._nnz() == 0:
                # No rank has used it in this step: as in one process, the optimiser passes it over.
                parameter.grad = None
            elif parameter.requires_grad or parameter.grad is not None:
                parameter.grad = gradient
        if _under_way.get(self._call_name) is self.waits:
            del _under_way[self._call_name]

    def reset(self, passes: int) -> None:
        if self.handle is not None:
            self.handle = None
            # Its operation may still write to the buffer: the next one has another.
            self._divide([parameter for parameter in self.parameters if parameter not in self.parts])
        self.sparse, self.sent, self.waits, self.is_launched = {}, {}, [], False
        self.missing = len(self.parameters) * passes


class Reducer:
    """Buckets of an optimiser's parameters. They are launched in one order on all ranks: the last parameters first,
    whose gradients are there first."""

    def __init__(
        self,
        parameters: Iterable[torch.Tensor],
        groups: Sequence[Sequence[torch.Tensor]],
        passes: int,
        settings: Settings,
        current: Callable[[], Optional[List[torch.Tensor]]],
    ) -> None:
        self.settings, self.passes = settings, passes
        #: Gives the optimiser's parameters as they are now; `None` once the optimiser is gone.
        self.current = current
        self.buckets: List[Bucket] = []
        self.of: Dict[torch.Tensor, Bucket] = {}
        #: Backward passes that are left to each parameter before a step.
        self.left: Dict[torch.Tensor, int] = {}
        self.launched = 0
        self.has_warned = False
        self.hooks: Dict[torch.Tensor, Any] = {}
        self.agreement = order_agreement()
        #: The generation in which the buckets were last compared with the optimiser's parameters; `None` if they are to be.
        self.followed: Optional[int] = None
        #: The last generation in which they were.
        self.followed_first: Optional[int] = None
        #: The generation whose ranks know which gradients are sparse, and the number of parameters then.
        self.agreed: Optional[Tuple[int, int]] = None
        given = list(parameters)
        places = {parameter: place for place, parameter in enumerate(given)}
        #: The groups, by the places of their parameters in the optimiser; a parameter of no place by itself.
        self.groups = [[places.get(parameter, parameter) for parameter in group] for group in groups]
        for division in self._divisions(given, ()):
            self._add(division)
        reference = weakref.ref(self)

        def ended() -> None:
            reducer = reference()
            if reducer is not None:
                reducer.reset()

        # Operations that an aborted step launched do not count for the next step.
        _context.on_generation_end(ended)

        def warn(text: str) -> None:
            reducer = reference()
            if reducer is not None:
                reducer._warn_of_half_a_step(text)

        _context.on_commit(lambda: warn(_HALF_COMMITTED))
        _context.on_look(lambda: warn(_HALF_LOOKED))

    def _warn_of_half_a_step(self, text: str) -> None:
        """Warns, once, where gradients that wait for the next step may be lost."""
        if self.passes > 1 and self.is_under_way and not self.has_warned:
            self.has_warned = True
            warnings.warn(text, RuntimeWarning, stacklevel=6)

    def _divisions(self, parameters: List[torch.Tensor], kept: Container[torch.Tensor]) -> List[List[torch.Tensor]]:
        """The parameters of each bucket, for an optimiser that has these: all but those that are frozen and not kept."""
        named = [
            [parameters[it] if isinstance(it, int) else it for it in group if not isinstance(it, int) or it < len(parameters)]
            for group in self.groups
        ]
        in_groups = {parameter for group in named for parameter in group}
        others = [parameter for parameter in reversed(parameters) if parameter not in in_groups]
        limits: List[Tuple[List[torch.Tensor], Optional[int]]] = [*((group, None) for group in named), (others, BUCKET_BYTES)]
        return [
            division
            for them, limit in limits
            for division in divide([it for it in them if it.requires_grad or it in kept], limit)
        ]

    def _add(self, parameters: List[torch.Tensor]) -> None:
        """Adds a bucket of these parameters."""
        reference = weakref.ref(self)

        def ready(parameter: torch.Tensor) -> None:
            reducer = reference()
            if reducer is not None:
                reducer.ready(parameter)

        bucket = Bucket(parameters, f"{self.settings.label}.bucket.{len(self.buckets)}", self.settings)
        bucket.reset(self.passes)
        self.buckets.append(bucket)
        for parameter in parameters:
            self.of[parameter] = bucket
            self.left[parameter] = self.passes
            if parameter not in self.hooks:
                self.hooks[parameter] = parameter.register_post_accumulate_grad_hook(ready)

    def include(self, parameters: Iterable[torch.Tensor]) -> None:
        """Takes in parameters that were added or unfrozen since: at the same step on all ranks."""
        self._follow()
        new = [parameter for parameter in parameters if parameter.requires_grad and parameter not in self.of]
        for division in divide(new, BUCKET_BYTES):
            self._add(division)
        if new:
            # They may have come in the place of others: the next step divides all of them.
            self.followed = None

    def _follow(self) -> None:
        """Divides the parameters anew, at the first gradient of a generation and of the step after `include` has taken some in, if
        the optimiser has others by now. A newcomer has never had those that are in no group any more, nor those that others have
        unfrozen once and frozen again, and begins with the others in this order."""
        generation = _context.generation()
        if self.followed == generation or self.is_under_way:
            return
        # Which are frozen within a generation may change between two gradients of a step.
        kept = self.of if self.followed_first == generation else ()
        self.followed = self.followed_first = generation
        parameters = self.current()
        if parameters is None:
            return
        divisions = self._divisions(parameters, kept)
        own = [list(map(id, bucket.parameters)) for bucket in self.buckets]
        if own == [list(map(id, division)) for division in divisions]:
            return
        self.buckets, self.of, self.left, self.agreed = [], {}, {}, None
        for division in divisions:
            self._add(division)
        for parameter in [parameter for parameter in self.hooks if parameter not in self.of]:
            self.hooks.pop(parameter).remove()

    @property
    def is_under_way(self) -> bool:
        """Whether a gradient has come since the last step."""
        return any(left != self.passes for left in self.left.values())

    def set_passes(self, passes: int) -> None:
        self.passes = passes
        self.reset()

    def reset(self) -> None:
        self.launched = 0
        self.left = dict.fromkeys(self.left, self.passes)
        for bucket in self.buckets:
            bucket.reset(self.passes)

    def ready(self, parameter: torch.Tensor) -> None:
        """A gradient is there."""
        self._follow()
        if parameter not in self.of:
            return
        if self.left[parameter] <= 0:
            # Said here, and not once more as the step takes what was sent.
            self.of[parameter].sent.pop(parameter, None)
            raise AssertionError(
                "gradients were computed more than backward_passes_per_step times before step(): the ones beyond "
                "would be lost. Give DistributedOptimizer a higher backward_passes_per_step"
            )
        self.left[parameter] -= 1
        self.of[parameter].missing -= 1
        while self.settings.label.is_taken and self.launched < len(self.buckets) and self.buckets[self.launched].missing <= 0:
            bucket = self.buckets[self.launched]
            if not self._have_agreed and any(bucket.is_sparse(it) for it in bucket.parameters):
                # A rank without gradients of these parameters does not know yet that they are sparse.
                break
            self.launch_next()

    def launch_next(self) -> None:
        self.buckets[self.launched].launch()
        self.launched += 1

    def finish(self) -> None:
        """Launches the remaining buckets, and waits for all."""
        try:
            self.settings.label.take()
            for bucket in self.buckets:
                bucket.check_unchanged()
            # `of` has the parameters in the order in which they are sent.
            self.agreement.check(len(self.of), lambda: self.settings.items(self.of), self.settings.process_set)
            if not self._have_agreed:
                self._agree_on_sparse()
            while self.launched < len(self.buckets):
                self.launch_next()
            for bucket in self.buckets:
                bucket.land()
        finally:
            self.reset()

    @property
    def _have_agreed(self) -> bool:
        """Whether the ranks of this generation know which gradients are sparse."""
        return self.settings.sparse_as_dense or self.agreed == (_context.generation(), len(self.of))

    def _agree_on_sparse(self) -> None:
        """Has gradients sent sparse that are so on the ranks that have had any: another rank sends an empty one."""
        known = [self.of[parameter].is_sparse(parameter) for parameter in self.of]
        if group_of(self.settings.process_set).size > 1 and known:
            # Sums, since ranks that have joined take part in them.
            given = torch.tensor([[of is kind for of in known] for kind in (False, True)], dtype=torch.int32)
            name, process_set = f"{self.settings.label}.sparse", self.settings.process_set
            dense, sparse = _reductions.allreduce(given, name=name, op=Sum, process_set=process_set).tolist()
            chosen = {parameter for place, parameter in enumerate(self.of) if sparse[place] and not dense[place]}
            for bucket in self.buckets:
                bucket.agree(chosen)
        self.agreed = _context.generation(), len(self.of)


def divide(parameters: Sequence[torch.Tensor], bucket_bytes: Optional[int]) -> List[List[torch.Tensor]]:
    """In order, into buckets of one type, on one device, and of about `bucket_bytes`, or of any size."""
    buckets: List[List[torch.Tensor]] = []
    size = 0
    for parameter in parameters:
        size_bytes = parameter.numel() * parameter.element_size()
        last = buckets[-1][0] if buckets else None
        is_like = last is not None and (last.dtype, last.device) == (parameter.dtype, parameter.device)
        if is_like and (bucket_bytes is None or size + size_bytes <= bucket_bytes):
            buckets[-1].append(parameter)
            size += size_bytes
        else:
            buckets.append([parameter])
            size = size_bytes
    return buckets
