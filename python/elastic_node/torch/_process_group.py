"""`ProcessGroupElastic`: torch's process group over a group of ours. It has the methods that torch calls, of any
version since 2.5, under the names that torch has had for them. `_backend` makes it."""

# Torch's C++ calls the overloads that are here, and by place; parameters have plainer names here.
# pyright: reportIncompatibleMethodOverride=false

from __future__ import annotations

import collections
import math
from datetime import timedelta
from typing import Any, Callable, Deque, List, Optional, Sequence, Tuple

import torch
import torch.distributed as dist

from .. import _native
from .._torch_tensors import bytes_in
from . import _reductions
from ._mail import Mailbox, PeerWork
from ._meeting import MeetingPlace
from ._monitor import monitored_barrier
from ._untraced import untraced
from ._work import AllOf, Work

#: Number of works that are kept alive here, the latest ones: torch does not hold their Python side, and would wait
#: for ever for one that was freed. Works that are not done are held by the callers of their `landed`.
_KEPT_MAX = 4096

#: Called when an operation has ended, with its error.
Done = Callable[[Optional[BaseException]], None]

#: A send or receive of a batch: whether it is a send, the peer, and the function that launches it.
_PeerToPeer = Tuple[bool, int, Callable[[], object]]


@untraced
class ProcessGroupElastic(dist.ProcessGroup):
    """Collectives on CPU tensors, and on CUDA tensors where the generation's collectives are NCCL's. They run in the
    order of the calls, beside the thread that trains; sends and receives of CPU tensors beside them.

    Args:
        group: ours, of all ranks.
        backend: the name by which torch knows it, "elastic" or "gloo".
        store: torch's, of this group.
        place: where pairs of ranks meet.
        timeout: of one operation.
    """

    def __init__(
        self, group: _native.Group, backend: str, store: dist.Store, place: MeetingPlace, timeout: timedelta
    ) -> None:
        super().__init__(group.rank, group.size)
        self._group = group
        #: On which operations on CUDA tensors are queued; None where the collectives are the CPU's.
        self._stream: Optional[torch.cuda.Stream] = None
        if group.stream is not None and torch.cuda.is_available():
            ordinal, handle = group.stream
            self._stream = torch.cuda.ExternalStream(handle, device=ordinal)
        self._backend, self._store, self._timeout = backend, store, timeout
        self._mailbox = Mailbox(group.rank, group.size, lambda sender, to: place.pair(sender, to, group))
        self._monitored = 0
        self._sequence = 0
        self._name = ""
        self._description = ""
        self._kept: Deque[Work] = collections.deque(maxlen=_KEPT_MAX)
        #: Sends and receives of CUDA tensors since `_start_coalescing`, as `(is_send, peer, launch)`.
        self._batch: Optional[List[_PeerToPeer]] = None
        #: Works since then.
        self._works_of_batch: List[Work] = []

    # Torch's questions about the group: it is its own backend.

    @property
    def supports_coalescing(self) -> bool:
        return True

    def _get_backend(self, device: torch.device) -> ProcessGroupElastic:  # type: ignore[override]  # It is its own backend.
        return self

    def getBackendName(self) -> str:  # noqa: N802: torch's name
        # Not the name by which it was asked for: torch's C++ takes a backend named "gloo" for its own class.
        return "elastic"

    def name(self) -> str:
        return "elastic"

    @property
    def _device_types(self) -> List[torch.device]:
        return [torch.device("cpu"), torch.device("cuda")]

    def set_timeout(self, timeout: timedelta) -> None:
        """For sends, receives and monitored barriers from here on. Collectives keep the one that the group has formed with."""
        self._timeout = timeout

    _set_default_timeout = set_timeout

    def _get_sequence_number_for_group(self) -> int:
        return self._sequence

    def _set_sequence_number_for_group(self) -> None:
        self._sequence = 0

    @property
    def group_name(self) -> str:  # type: ignore[override]  # Read-only here; torch calls `_set_group_name`.
        return self._name

    def _set_group_name(self, name: str) -> None:
        self._name = name

    @property
    def group_desc(self) -> str:
        return self._description

    def _set_group_desc(self, description: str) -> None:
        self._description = description

    # Parts of the group. `new_group` asks the members alone, which meet in the store; `split_group` asks all ranks.

    @property
    def supports_splitting(self) -> bool:
        return True

    def split_group(
        self,
        ranks: List[int],
        timeout: Optional[timedelta] = None,
        opts: Any = None,
        group_name: Optional[str] = None,
        group_desc: Optional[str] = None,
        device_types: Any = None,
    ) -> Optional[ProcessGroupElastic]:
        """The group of these ranks of this one, with addresses and a key that are exchanged over it. Each rank names the
        members of its own part, and of any where it is in none."""
        own, timeout = self.rank(), timeout or self._timeout
        is_member = own in ranks
        group = self._group.split(min(ranks) if is_member else None, ranks.index(own) if is_member else 0)
        if group is None:
            return None
        store = dist.PrefixStore(f"{group_name}/", self._store)
        place = MeetingPlace(store, group.rank, group.size, timeout)
        part = ProcessGroupElastic(group, self._backend, store, place, timeout)
        part._set_group_name(group_name or "")
        part._set_group_desc(group_desc or "")
        return part

    def get_group_store(self) -> dist.Store:
        return self._store

    def perform_nocolor_split(self, device: torch.device) -> None:
        """Called on ranks that are not in a new group. Does nothing, since the others do not ask them."""

    def eager_connect_single_device(self, device: torch.device) -> None:
        """Connects the ranks: they are, once the group has formed."""

    def shutdown(self) -> None:
        """Ends sends and receives. The owner of the group leaves it: the generation, or the program that drops it."""
        self._mailbox.close()

    def abort(self) -> None:
        """As `shutdown`."""
        self._mailbox.close()

    # The operations that torch calls.

    def allreduce(self, tensors: List[torch.Tensor], opts: Any = None) -> Work:  # type: ignore[override]  # Torch calls this one.
        name = _reductions.name_of(opts) if opts is not None else "SUM"
        if any(tensor.is_sparse for tensor in tensors):
            return self._allreduce_sparse(tensors, name)
        work = Work(tensors)
        memory = self._memory(tensors, work)
        if _reductions.is_folded(memory, name):
            own = torch.cat([bytes_in(of_one) for of_one in memory])
            parts = own.new_empty((self.size(), len(own)))
            self._fold(work, parts, memory, name)
            return self._launch(work, "all_reduce", lambda done: self._group.all_gather(own, parts, None, done))
        reductions, op = _reductions.all_natively(memory, name)
        work.before_after(lambda: [reduction.finish() for reduction in reductions])
        reduced = [reduction.memory for reduction in reductions]
        return self._launch(work, "all_reduce", lambda done: self._group.all_reduce(reduced, op, done))

    def _fold(self, work: Work, parts: torch.Tensor, targets: Sequence[torch.Tensor], name: str) -> None:
        """Has the reduction of all ranks' bytes in memory of tensors, when they have come."""

        def fold() -> None:
            sizes = [target.nbytes for target in targets]
            for target, result in zip(targets, _reductions.fold(parts, name).split(sizes)):
                bytes_in(target).copy_(result)

        work.before_after(fold)

    def _allreduce_sparse(self, tensors: List[torch.Tensor], name: str) -> Work:
        """The sum of sparse tensors, whose ranks tell each other first how many elements they have."""
        if len(tensors) != 1 or name != "SUM":
            raise ValueError("the elastic backend sums one sparse tensor at a time: it has no other reduction of them")
        own = tensors[0].coalesce()
        counts = torch.empty(self.size(), dtype=torch.int64, device="cpu")
        self._group.all_gather(torch.tensor([own._nnz()], device="cpu"), counts, None, None).wait()
        indices, values = own.indices().t().contiguous(), own.values().contiguous()
        total = int(counts.sum())
        all_indices = indices.new_empty((total, *indices.shape[1:]))
        all_values = values.new_empty((total, *values.shape[1:]))

        def elements(part: torch.Tensor) -> List[int]:
            row = math.prod(part.shape[1:])
            return [int(count) * row for count in counts]

        work = Work(tensors)

        def after() -> None:
            total_sum = torch.sparse_coo_tensor(all_indices.t(), all_values, own.shape, device=own.device).coalesce()
            tensors[0].copy_(total_sum)

        work._after = after
        self._group.all_gather(indices, all_indices, elements(indices), None)
        return self._launch(
            work, "sparse_all_reduce", lambda done: self._group.all_gather(values, all_values, elements(values), done)
        )

    def allreduce_coalesced(self, tensors: List[torch.Tensor], opts: Any = None) -> Work:
        return self.allreduce(tensors, opts)

    def broadcast(self, tensors: List[torch.Tensor], opts: Any) -> Work:  # type: ignore[override]  # Torch calls this one.
        def launch(memory: List[torch.Tensor], done: Done) -> _native.Handle:
            return self._group.broadcast(memory[0], opts.rootRank, done)

        return self._in_place(tensors, "broadcast", launch)

    def reduce(self, tensors: List[torch.Tensor], opts: Any) -> Work:  # type: ignore[override]  # Torch calls this one.
        name, root = _reductions.name_of(opts), opts.rootRank
        work = Work(tensors)
        memory = self._memory(tensors, work)
        if _reductions.is_folded(memory, name):
            own, parts = bytes_in(memory[0]), None
            if self.rank() == root:
                parts = own.new_empty((self.size(), len(own)))
                self._fold(work, parts, memory, name)
            return self._launch(work, "reduce", lambda done: self._group.gather(own, parts, root, done))
        reduction = _reductions.natively(memory[0], name)
        work.before_after(reduction.finish)
        return self._launch(
            work, "reduce", lambda done: self._group.reduce(reduction.memory, reduction.op, root, done)
        )

    def allgather(  # type: ignore[override]  # Torch calls this one.
        self,
        outputs: List[List[torch.Tensor]],
        inputs: List[torch.Tensor],
        opts: Any = None,
        title: Optional[str] = "all_gather",
    ) -> Work:
        (targets,), (source,) = outputs, inputs
        source = _dense(source)
        counts = [target.numel() for target in targets]
        flat = source.new_empty(sum(counts))
        parts = [part.view(target.shape) for part, target in zip(flat.split(counts), targets)]
        work = Work(targets)
        work._after = lambda: _copy(parts, targets)
        return self._launch(work, title, lambda done: self._group.all_gather(source, flat, counts, done), inputs)

    def allgather_coalesced(
        self, outputs: List[List[torch.Tensor]], inputs: List[torch.Tensor], opts: Any = None
    ) -> Work:
        # There is one list for each rank; together they are one gather of each tensor.
        works = [
            self.allgather([[of_rank[number] for of_rank in outputs]], [source], title=None)
            for number, source in enumerate(inputs)
        ]
        return self._together(works, "all_gather", inputs)

    def all_gather_single(
        self, output: torch.Tensor, input: torch.Tensor, opts: Any = None, title: Optional[str] = "all_gather"
    ) -> Work:
        source = _dense(input)
        return self._into(
            output, title, lambda memory, done: self._group.all_gather(source, memory, None, done), [input]
        )

    def all_gather_single_coalesced(
        self, outputs: List[torch.Tensor], inputs: List[torch.Tensor], opts: Any = None
    ) -> Work:
        works = [self.all_gather_single(output, source, title=None) for output, source in zip(outputs, inputs)]
        return self._together(works, "all_gather", inputs)

    def reduce_scatter_single(
        self, output: torch.Tensor, input: torch.Tensor, opts: Any = None, title: Optional[str] = "reduce_scatter"
    ) -> Work:
        name = _reductions.name_of(opts) if opts is not None else "SUM"
        work = Work([output])
        source, memory = _dense(input), self._memory([output], work)
        if source.dtype == output.dtype and _reductions.is_folded(memory, name):
            own, parts = bytes_in(source), bytes_in(memory[0]).new_empty((self.size(), output.nbytes))
            self._fold(work, parts, memory, name)
            return self._launch(
                work, title, lambda done: self._group.all_to_all(own, parts, None, None, done), [input]
            )
        given, taken = _reductions.natively(source, name), _reductions.natively(memory[0], name)
        work.before_after(taken.finish)
        return self._launch(
            work,
            title,
            lambda done: self._group.reduce_scatter(given.memory, taken.memory, taken.op, done),
            [input],
        )

    def reduce_scatter_single_coalesced(
        self, outputs: List[torch.Tensor], inputs: List[torch.Tensor], opts: Any = None
    ) -> Work:
        pairs = zip(outputs, inputs)
        works = [self.reduce_scatter_single(output, source, opts, title=None) for output, source in pairs]
        return self._together(works, "reduce_scatter", inputs)

    def reduce_scatter(  # type: ignore[override]  # Torch calls this one.
        self, outputs: List[torch.Tensor], inputs: List[List[torch.Tensor]], opts: Any = None
    ) -> Work:
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
    ) -> Work:
        source = _dense(input)
        sent = received = None
        if input_splits or output_splits:
            sent = self._counts(input_splits, source)
            received = self._counts(output_splits, output)
        return self._into(
            output, "all_to_all", lambda memory, done: self._group.all_to_all(source, memory, sent, received, done), [input]
        )

    def alltoall(
        self, outputs: List[torch.Tensor], inputs: List[torch.Tensor], opts: Any = None
    ) -> Work:
        source = _dense(torch.cat([tensor.detach().reshape(-1) for tensor in inputs]))
        received = [tensor.numel() for tensor in outputs]
        target = source.new_empty(sum(received))
        parts = [part.view(tensor.shape) for part, tensor in zip(target.split(received), outputs)]
        work = Work(outputs)
        work._after = lambda: _copy(parts, outputs)
        sent = [tensor.numel() for tensor in inputs]
        return self._launch(
            work, "all_to_all", lambda done: self._group.all_to_all(source, target, sent, received, done), inputs
        )

    def gather(  # type: ignore[override]  # Torch calls this one.
        self, outputs: List[List[torch.Tensor]], inputs: List[torch.Tensor], opts: Any
    ) -> Work:
        source, root = _dense(inputs[0]), opts.rootRank
        if self.rank() != root:
            return self._launch(Work([]), "gather", lambda done: self._group.gather(source, None, root, done), inputs)
        (targets,) = outputs
        all_parts = source.new_empty((self.size(), *source.shape))
        work = Work(targets)
        work._after = lambda: _copy(all_parts.unbind(), targets)
        return self._launch(work, "gather", lambda done: self._group.gather(source, all_parts, root, done), inputs)

    def scatter(  # type: ignore[override]  # Torch calls this one.
        self, outputs: List[torch.Tensor], inputs: List[List[torch.Tensor]], opts: Any
    ) -> Work:
        (output,), root = outputs, opts.rootRank
        all_parts = None
        if self.rank() == root:
            all_parts = _dense(torch.stack([part.detach() for part in inputs[0]]))
        return self._into(
            output, "scatter", lambda memory, done: self._group.scatter(all_parts, memory, root, done), [output]
        )

    def barrier(self, opts: Any = None) -> Work:
        return self._launch(Work([]), "barrier", self._group.barrier)

    def monitored_barrier(self, opts: Any = None, wait_all_ranks: bool = False) -> None:
        """See `torch.distributed.monitored_barrier`. Torch passes options from C++, and a timeout from Python."""
        timeout = opts if isinstance(opts, timedelta) else self._timeout
        self._monitored += 1
        store = dist.PrefixStore(f"elastic/monitored/{self._monitored}", self._store)
        monitored_barrier(store, self.rank(), self.size(), timeout, wait_all_ranks)

    def send(self, tensors: List[torch.Tensor], to: int, tag: int = 0) -> Work:
        _check_dense(tensors[0], "send")
        source = _dense(tensors[0])
        if not source.is_cuda:
            # A send is done when it is on its way, and its memory may be changed then.
            work = self._peer_work(tensors, "send")
            self._mailbox.send(source, to, tag, work)
            return work
        on_gpu = Work(tensors)
        return self._peer_to_peer(True, to, on_gpu, "send", lambda done: self._group.send(source, to, done))

    def recv(self, tensors: List[torch.Tensor], from_: int, tag: int = 0) -> Work:
        _check_dense(tensors[0], "recv")
        if not tensors[0].is_cuda:
            return self._receive(tensors, from_, tag, "recv")
        work = Work(tensors)
        memory = self._memory(tensors, work)
        return self._peer_to_peer(False, from_, work, "recv", lambda done: self._group.recv(memory[0], from_, done))

    def recv_anysource(self, tensors: List[torch.Tensor], tag: int = 0) -> Work:
        _check_dense(tensors[0], "recv")
        if tensors[0].is_cuda:
            raise NotImplementedError("CUDA tensors are received from a rank that is named: give recv its src")
        return self._receive(tensors, None, tag, "recvAnySource")

    recvAnysource = recv_anysource  # noqa: N815: torch's name before 2.15

    def _receive(self, tensors: List[torch.Tensor], source: Optional[int], tag: int, title: str) -> Work:
        work = self._peer_work(tensors, title)
        memory = self._memory(tensors, work)
        self._mailbox.recv(memory[0], source, tag, work)
        return work

    def _peer_work(self, tensors: List[torch.Tensor], title: str) -> PeerWork:
        work = PeerWork(tensors, self._timeout.total_seconds(), title, self._mailbox.forget)
        self._note(work, title, tensors)
        return work

    def _start_coalescing(self, device: torch.device) -> None:
        self._batch, self._works_of_batch = [], []

    def _end_coalescing(self, device: torch.device) -> Work:
        """Ends a batch. Sends and receives of CUDA tensors are launched here, in an order in which no ranks wait for each
        other in a circle: pairs of ranks one after the other, the same way everywhere, and of each pair first what the
        lower rank sends."""
        batch, self._batch = self._batch or [], None
        own = self.rank()

        def order(part: _PeerToPeer) -> Tuple[int, int, bool]:
            is_send, peer, _launch = part
            return min(own, peer), max(own, peer), is_send is not (own < peer)

        for _is_send, _peer, launch in sorted(batch, key=order):
            launch()
        works, self._works_of_batch = self._works_of_batch, []
        if len(works) == 1:
            return works[0]
        together = AllOf(works)
        self._keep(together)
        together.begin()
        return together

    start_coalescing, end_coalescing = _start_coalescing, _end_coalescing

    def _peer_to_peer(
        self, is_send: bool, peer: int, work: Work, title: str, launch: Callable[[Done], _native.Handle]
    ) -> Work:
        if self._batch is None:
            return self._launch(work, title, launch)
        self._batch.append((is_send, peer, lambda: self._launch(work, title, launch)))
        return work

    # The names before torch 2.14.
    _allgather_base = all_gather_single
    allgather_into_tensor_coalesced = all_gather_single_coalesced  # type: ignore[assignment]  # The parameters have other names.
    _reduce_scatter_base = reduce_scatter_single  # type: ignore[assignment]  # The parameters have other names.
    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced  # type: ignore[assignment]  # The parameters have other names.
    alltoall_base = all_to_all_single  # type: ignore[assignment]  # The parameters have other names.

    # Helpers of the operations.

    def _counts(self, splits: Sequence[int], tensor: torch.Tensor) -> List[int]:
        """Elements for each rank, of splits in rows."""
        if not splits:
            return [tensor.numel() // self.size()] * self.size()
        row = tensor[0].numel() if tensor.shape[0] else 0
        return [split * row for split in splits]

    def _into(
        self,
        output: torch.Tensor,
        title: Optional[str],
        launch: Callable[[torch.Tensor, Done], _native.Handle],
        inputs: Sequence[torch.Tensor],
    ) -> Work:
        return self._in_place([output], title, lambda memory, done: launch(memory[0], done), inputs)

    def _in_place(
        self,
        tensors: List[torch.Tensor],
        title: Optional[str],
        launch: Callable[[List[torch.Tensor], Done], _native.Handle],
        inputs: Optional[Sequence[torch.Tensor]] = None,
    ) -> Work:
        """An operation that changes tensors; through copies, where they are not contiguous."""
        work = Work(tensors)
        memory = self._memory(tensors, work)
        return self._launch(work, title, lambda done: launch(memory, done), inputs)

    def _memory(self, tensors: List[torch.Tensor], work: Work) -> List[torch.Tensor]:
        """Contiguous memory of tensors that are changed, copied back after the work."""
        memory = [_dense(tensor) for tensor in tensors]
        if any(copy.data_ptr() != tensor.data_ptr() for copy, tensor in zip(memory, tensors)):
            work._after = lambda: _copy(memory, tensors)
        return memory

    def _launch(
        self,
        work: Work,
        title: Optional[str],
        launch: Callable[[Done], _native.Handle],
        inputs: Optional[Sequence[torch.Tensor]] = None,
    ) -> Work:
        self._note(work, title, work.result() if inputs is None else inputs)
        if any(tensor.is_cuda for tensor in work.result()):
            work.order_by(self._stream)
        work._handle = launch(_Landing(work))
        return work

    def _together(self, works: List[Work], title: str, inputs: Sequence[torch.Tensor]) -> Work:
        """One work for several that were launched."""
        work = AllOf(works, [tensor for part in works for tensor in part.result()])
        self._note(work, title, inputs)
        work.begin()
        return work

    def _note(self, work: Work, title: Optional[str], inputs: Sequence[torch.Tensor]) -> None:
        """Keeps a work that begins, and with a title its event in torch's profiler."""
        self._keep(work)
        if self._batch is not None:
            self._works_of_batch.append(work)
        self._sequence += 1
        if title is not None:
            work.record(f"{self._backend}:{title}", inputs)

    def _keep(self, work: Work) -> None:
        self._kept.append(work)


@untraced
class _Landing:
    """Receives the reports of the collectives' thread about an operation."""

    def __init__(self, work: Work) -> None:
        #: Called when it is on the stream of the group's GPU.
        self.queued = work.queued
        self._landed = work.landed

    def __call__(self, error: Optional[BaseException]) -> None:
        self._landed(error)


def _dense(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor without gradient, gaps, and bits that stand for an operation that was put off; itself where it has none."""
    return tensor.detach().resolve_conj().resolve_neg().contiguous()


def _check_dense(tensor: torch.Tensor, what: str) -> None:
    """Refuses a tensor without dense memory, before anything of the message is on its way.

    Raises:
        ValueError: the tensor has none.
    """
    kinds = [kind for kind in ("meta", "nested", "quantized") if getattr(tensor, f"is_{kind}")]
    if tensor.layout != torch.strided:
        kinds.append(str(tensor.layout))
    if kinds:
        raise ValueError(f"{what} takes dense tensors, not one that is {kinds[0]}")


def _copy(sources: Sequence[torch.Tensor], targets: Sequence[torch.Tensor]) -> None:
    for source, target in zip(sources, targets):
        if source.data_ptr() != target.data_ptr():
            target.copy_(source)
    for device in {target.device for target in targets if target.is_cuda}:
        # The waiter for the operation uses the tensors on another stream.
        torch.cuda.current_stream(device).synchronize()
