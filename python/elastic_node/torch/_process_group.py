"""`ProcessGroupElastic`: torch's process group over a group of ours. What torch calls, of any version since 2.5, is
here under the names that it has had."""

from __future__ import annotations

import collections
from datetime import timedelta
from typing import Any, Callable, Deque, List, Optional, Sequence

import torch
import torch.distributed as dist
from torch.futures import Future

from .. import _native

#: Whether works must be kept alive here: torch before 2.8 does not hold their Python side, and would wait for ever
#: on one that is gone.
_KEEPS_WORKS = tuple(int(part) for part in torch.__version__.split(".")[:2]) < (2, 8)

#: How many are kept, the latest ones.
_KEPT_MAX = 4096

_OPS = (
    (dist.ReduceOp.SUM, "sum"),
    (dist.ReduceOp.AVG, "mean"),
    (dist.ReduceOp.PRODUCT, "prod"),
    (dist.ReduceOp.MIN, "min"),
    (dist.ReduceOp.MAX, "max"),
)


def _op_of(options: Any) -> str:
    op = getattr(options, "reduceOp", options)
    for of_torch, name in _OPS:
        if op == of_torch:
            return name
    raise ValueError(f"the elastic backend has no reduction {op}: take SUM, AVG, PRODUCT, MIN or MAX")


class _Work(dist.Work):
    """An operation that was launched."""

    def __init__(self, result: Sequence[torch.Tensor]) -> None:
        super().__init__()
        self._landing: Future = Future()
        # A future that Python fails holds an exception as its value, which DDP's C++ takes for tensors. One that
        # hangs on another fails as C++ expects it.
        self._future: Future = self._landing.then(self._outcome)
        self._result = list(result)
        self._after: Optional[Callable[[], None]] = None
        self._error: Optional[BaseException] = None
        self._handle: Optional[_native.Handle] = None

    def landed(self, error: Optional[BaseException]) -> None:
        """Called on the collectives' thread when the operation is done."""
        self._error = error
        if error is None and self._after is not None:
            with torch.no_grad():
                self._after()
        self._landing.set_result(None)

    def _outcome(self, _landing: Future) -> List[torch.Tensor]:
        if self._error is not None:
            raise self._error
        return self._result

    def wait(self, timeout: Optional[timedelta] = None) -> bool:
        if self._handle is not None:
            self._handle.wait()
        if self._error is not None:
            raise self._error
        return True

    def is_completed(self) -> bool:
        return bool(self._future.done())

    def is_success(self) -> bool:
        return self.is_completed() and self._error is None

    def exception(self) -> Any:
        return self._error

    def result(self) -> List[torch.Tensor]:
        return self._result

    def get_future(self) -> Future:
        return self._future


class ProcessGroupElastic(dist.ProcessGroup):
    """Collectives on CPU tensors, and on CUDA tensors where the generation's collectives are NCCL's. They run in the
    order of the calls, beside the thread that trains."""

    def __init__(self, group: _native.Group) -> None:
        super().__init__(group.rank, group.size)
        self._group = group
        self._name = ""
        self._description = ""
        self._kept: Deque[_Work] = collections.deque(maxlen=_KEPT_MAX)

    def getBackendName(self) -> str:  # noqa: N802: torch's name
        return "elastic"

    @property
    def group_name(self) -> str:
        return self._name

    def _set_group_name(self, name: str) -> None:
        self._name = name

    @property
    def group_desc(self) -> str:
        return self._description

    def _set_group_desc(self, description: str) -> None:
        self._description = description

    def shutdown(self) -> None:
        """The group is left by its owner: the generation, or whoever drops it."""

    def abort(self) -> None:
        """As `shutdown`."""

    # What torch calls.

    def allreduce(self, tensors: List[torch.Tensor], opts: Any = None) -> _Work:
        op = _op_of(opts) if opts is not None else "sum"
        return self._in_place(tensors, lambda memory, done: self._group.all_reduce(memory, op, done))

    def allreduce_coalesced(self, tensors: List[torch.Tensor], opts: Any = None) -> _Work:
        return self.allreduce(tensors, opts)

    def broadcast(self, tensors: List[torch.Tensor], opts: Any) -> _Work:
        def launch(memory: List[torch.Tensor], done: Callable) -> _native.Handle:
            return self._group.broadcast(memory[0], opts.rootRank, done)

        return self._in_place(tensors, launch)

    def reduce(self, tensors: List[torch.Tensor], opts: Any) -> _Work:
        sums = [tensor.detach().clone(memory_format=torch.contiguous_format) for tensor in tensors]
        work = _Work(tensors)
        if self.rank() == opts.rootRank:
            work._after = lambda: _copy(sums, tensors)
        op = _op_of(opts)
        return self._launch(work, lambda done: self._group.all_reduce(sums, op, done))

    def allgather(
        self, outputs: List[List[torch.Tensor]], inputs: List[torch.Tensor], opts: Any = None
    ) -> _Work:
        (targets,), (source,) = outputs, inputs
        source = source.detach().contiguous()
        counts = [target.numel() for target in targets]
        flat = source.new_empty(sum(counts))
        parts = [part.view(target.shape) for part, target in zip(flat.split(counts), targets)]
        work = _Work(targets)
        work._after = lambda: _copy(parts, targets)
        return self._launch(work, lambda done: self._group.all_gather(source, flat, counts, done))

    def allgather_coalesced(
        self, outputs: List[List[torch.Tensor]], inputs: List[torch.Tensor], opts: Any = None
    ) -> _Work:
        # One list for each rank: together they are one gather of each tensor.
        works = [
            self.allgather([[of_rank[number] for of_rank in outputs]], [source])
            for number, source in enumerate(inputs)
        ]
        return works[-1]

    def all_gather_single(self, output: torch.Tensor, input: torch.Tensor, opts: Any = None) -> _Work:
        source = input.detach().contiguous()
        return self._into(output, lambda memory, done: self._group.all_gather(source, memory, None, done))

    def all_gather_single_coalesced(
        self, outputs: List[torch.Tensor], inputs: List[torch.Tensor], opts: Any = None
    ) -> _Work:
        return [self.all_gather_single(output, source) for output, source in zip(outputs, inputs)][-1]

    def reduce_scatter_single(self, output: torch.Tensor, input: torch.Tensor, opts: Any = None) -> _Work:
        op = _op_of(opts) if opts is not None else "sum"
        source = input.detach().contiguous()
        return self._into(
            output, lambda memory, done: self._group.reduce_scatter(source, memory, op, done)
        )

    def reduce_scatter_single_coalesced(
        self, outputs: List[torch.Tensor], inputs: List[torch.Tensor], opts: Any = None
    ) -> _Work:
        pairs = zip(outputs, inputs)
        return [self.reduce_scatter_single(output, source, opts) for output, source in pairs][-1]

    def reduce_scatter(
        self, outputs: List[torch.Tensor], inputs: List[List[torch.Tensor]], opts: Any = None
    ) -> _Work:
        (output,), (sources,) = outputs, inputs
        if any(source.shape != output.shape for source in sources):
            raise ValueError("the elastic backend scatters parts of one shape")
        return self.reduce_scatter_single(output, torch.stack(sources), opts)

    def all_to_all_single(
        self,
        output: torch.Tensor,
        input: torch.Tensor,
        output_splits: Sequence[int],
        input_splits: Sequence[int],
        opts: Any = None,
    ) -> _Work:
        source = input.detach().contiguous()
        sent = received = None
        if input_splits or output_splits:
            sent = self._counts(input_splits, source)
            received = self._counts(output_splits, output)
        return self._into(
            output, lambda memory, done: self._group.all_to_all(source, memory, sent, received, done)
        )

    def alltoall(
        self, outputs: List[torch.Tensor], inputs: List[torch.Tensor], opts: Any = None
    ) -> _Work:
        source = torch.cat([tensor.detach().reshape(-1) for tensor in inputs])
        received = [tensor.numel() for tensor in outputs]
        target = source.new_empty(sum(received))
        parts = [part.view(tensor.shape) for part, tensor in zip(target.split(received), outputs)]
        work = _Work(outputs)
        work._after = lambda: _copy(parts, outputs)
        sent = [tensor.numel() for tensor in inputs]
        return self._launch(
            work, lambda done: self._group.all_to_all(source, target, sent, received, done)
        )

    def gather(
        self, outputs: List[List[torch.Tensor]], inputs: List[torch.Tensor], opts: Any
    ) -> _Work:
        (source,) = inputs
        targets = outputs[0] if self.rank() == opts.rootRank else None
        parts = targets or [torch.empty_like(source) for _ in range(self.size())]
        return self.allgather([parts], inputs)

    def scatter(
        self, outputs: List[torch.Tensor], inputs: List[List[torch.Tensor]], opts: Any
    ) -> _Work:
        (output,) = outputs
        if self.rank() == opts.rootRank:
            all_parts = torch.stack([part.detach() for part in inputs[0]])
        else:
            all_parts = output.new_empty((self.size(), *output.shape))
        work = _Work(outputs)
        own = all_parts[self.rank()]
        work._after = lambda: _copy([own], outputs)
        return self._launch(
            work, lambda done: self._group.broadcast(all_parts, opts.rootRank, done)
        )

    def barrier(self, opts: Any = None) -> _Work:
        return self._launch(_Work([]), self._group.barrier)

    def send(self, tensors: List[torch.Tensor], to: int, tag: int = 0) -> _Work:
        source = tensors[0].detach().contiguous()
        return self._launch(_Work(tensors), lambda done: self._group.send(source, to, done))

    def recv(self, tensors: List[torch.Tensor], from_: int, tag: int = 0) -> _Work:
        return self._in_place(tensors, lambda memory, done: self._group.receive(memory[0], from_, done))

    # The names before torch 2.14.
    _allgather_base = all_gather_single
    allgather_into_tensor_coalesced = all_gather_single_coalesced
    _reduce_scatter_base = reduce_scatter_single
    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced
    alltoall_base = all_to_all_single

    # What they are made of.

    def _counts(self, splits: Sequence[int], tensor: torch.Tensor) -> List[int]:
        """Elements for each rank, of splits in rows."""
        if not splits:
            return [tensor.numel() // self.size()] * self.size()
        row = tensor[0].numel() if tensor.shape[0] else 0
        return [split * row for split in splits]

    def _into(self, output: torch.Tensor, launch: Callable[[torch.Tensor, Callable], Any]) -> _Work:
        return self._in_place([output], lambda memory, done: launch(memory[0], done))

    def _in_place(
        self, tensors: List[torch.Tensor], launch: Callable[[List[torch.Tensor], Callable], Any]
    ) -> _Work:
        """An operation that changes tensors; through copies, where they are not contiguous."""
        memory = [tensor.detach().contiguous() for tensor in tensors]
        work = _Work(tensors)
        if any(copy.data_ptr() != tensor.data_ptr() for copy, tensor in zip(memory, tensors)):
            work._after = lambda: _copy(memory, tensors)
        return self._launch(work, lambda done: launch(memory, done))

    def _launch(self, work: _Work, launch: Callable[[Callable], _native.Handle]) -> _Work:
        work._handle = launch(work.landed)
        if _KEEPS_WORKS:
            self._kept.append(work)
        return work


def _copy(sources: Sequence[torch.Tensor], targets: Sequence[torch.Tensor]) -> None:
    for source, target in zip(sources, targets):
        if source.data_ptr() != target.data_ptr():
            target.copy_(source)
    for device in {target.device for target in targets if target.is_cuda}:
        # Whoever waits for the operation uses the tensors on a stream of his own.
        torch.cuda.current_stream(device).synchronize()
