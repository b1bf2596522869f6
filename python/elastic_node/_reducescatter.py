"""Reduce-scatter, with Horovod's names and arguments. Programs call it."""

from __future__ import annotations

from typing import Any, List, Optional, Sequence, Tuple

from . import _arrays, _gradients, _timeline
from ._compression import Compression, Compressor
from ._exchanges import grouped_allgather
from ._handle import Handle, waited
from ._process_sets import ProcessSet, global_process_set, group_of
from ._reduce_op import Average, ReduceOp, Sum, resolve
from ._types import Array


def reducescatter(
    tensor: Array,
    name: Optional[str] = None,
    compression: Compressor = Compression.none,
    op: Optional[ReduceOp] = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Array:
    """This rank's rows of the reduction of all ranks' tensors; a function of autograd.

    Args:
        tensor: of shape (rows, …), the same on all ranks. If the rows cannot be divided evenly, the first ranks get
            one more.
        name, compression, op, process_set, prescale_factor, postscale_factor: see `allreduce`.

    Returns:
        Of shape (this rank's rows, …).

    Raises:
        CollectiveError: a worker was lost, the generation was aborted, or ranks made calls that do not match.
        ValueError: a tensor of no dimensions.
        BufferError, TypeError, NotImplementedError: as of `allreduce`.
    """
    compressed, context = compression.compress(tensor)
    value = waited(
        lambda: reducescatter_async(
            compressed, name, op, process_set, prescale_factor, postscale_factor
        )
    )
    return compression.decompress(value, context)


def reducescatter_async(
    tensor: Array,
    name: Optional[str] = None,
    op: Optional[ReduceOp] = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Handle[Array]:
    """As `reducescatter`, beside this thread.

    Returns:
        A handle: `synchronize` waits for it and returns its result.

    Raises:
        BufferError, TypeError, ValueError: as of `reducescatter`. `synchronize` raises its `CollectiveError`.
    """
    scattering = _Scattering(resolve(op), process_set, prescale_factor, postscale_factor)
    handle = scattering.launch([tensor], name)
    return Handle(handle._native, lambda: handle._result()[0])


def grouped_reducescatter(
    tensors: Sequence[Array],
    name: Optional[str] = None,
    compression: Compressor = Compression.none,
    op: Optional[ReduceOp] = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> List[Array]:
    """`reducescatter` of many tensors as one call.

    Args:
        tensors: as many, of the same types and shapes, on all ranks.

    Returns:
        This rank's rows of each, in the order of `tensors`.

    Raises:
        CollectiveError, BufferError, TypeError, ValueError, NotImplementedError: as of `reducescatter`.
    """
    pairs = [compression.compress(tensor) for tensor in tensors]
    compressed = [tensor for tensor, _ in pairs]
    values = waited(
        lambda: grouped_reducescatter_async(
            compressed, name, op, process_set, prescale_factor, postscale_factor
        )
    )
    return [compression.decompress(value, context) for value, (_, context) in zip(values, pairs)]


def grouped_reducescatter_async(
    tensors: Sequence[Array],
    name: Optional[str] = None,
    op: Optional[ReduceOp] = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Handle[List[Array]]:
    """As `grouped_reducescatter`, beside this thread.

    Returns:
        A handle: `synchronize` waits for it and returns the list of results.

    Raises:
        BufferError, TypeError, ValueError: as of `grouped_reducescatter`. `synchronize` raises its `CollectiveError`.
    """
    return _Scattering(resolve(op), process_set, prescale_factor, postscale_factor).launch(tensors, name)


class _Scattering:
    """Settings of a reduce-scatter, and its launch."""

    def __init__(
        self, op: ReduceOp, process_set: ProcessSet, prescale_factor: float, postscale_factor: float
    ) -> None:
        self.op, self.process_set = op, process_set
        self.prescale_factor, self.postscale_factor = prescale_factor, postscale_factor

    def launch(self, tensors: Sequence[Any], name: Optional[str]) -> Handle[List[Any]]:
        group = group_of(self.process_set)
        for tensor in tensors:
            if len(getattr(tensor, "shape", ())) == 0:
                raise ValueError("reducescatter takes tensors with rows, not scalars")
        parts, backs = [], []
        for tensor in tensors:
            source, back = _arrays.contiguous(tensor)
            parts.append(_padded(source, group.rank, group.size, self.prescale_factor))
            backs.append(back)
        integers = self.op is Average and not all(_arrays.is_floating(source) for source, _, _ in parts)
        what = ", ".join(_arrays.described(tensor) for tensor in tensors)
        what = f"{self.op.name.lower()} of {what}, scaled by {self.prescale_factor} and {self.postscale_factor}"
        call = group.begin("reducescatter" if len(parts) == 1 else "grouped_reducescatter", name, what)
        for source, target, _ in parts:
            op = Sum if integers else self.op
            with _arrays.naming_types([source]):
                call.reduce_scatter(source, target, op.value)  # pyright: ignore[reportArgumentType]  # `resolve` refuses Adasum.
        record = _gradients.recorder(tensors, self.backward)

        def finish() -> List[Any]:
            results = []
            for (_, target, rows), back in zip(parts, backs):
                if integers and not _arrays.is_floating(target):
                    _arrays.divide(target, group.size)
                elif integers:
                    _arrays.scale(target, 1.0 / group.size)
                _arrays.scale(target, self.postscale_factor)
                results.append(back(target[:rows]))
            return record(results)

        return Handle(_timeline.launch(group, call, "REDUCESCATTER", name), finish)

    def backward(self, gradients: Sequence[Any]) -> List[Any]:
        if self.op not in (Average, Sum):
            raise NotImplementedError(f"{self.op} has no gradient here: reduce by Average or Sum")
        size = group_of(self.process_set).size if self.op is Sum else 1
        factor = size * self.prescale_factor * self.postscale_factor
        scaled = [gradient * factor for gradient in gradients]
        return grouped_allgather(scaled, process_set=self.process_set)


def _padded(source: Any, rank: int, size: int, factor: float) -> Tuple[Any, Any, int]:
    """The data to send, in equal parts; the memory for this rank's part; and the number of rows in it that count."""
    rows = source.shape[0]
    least, longer = divmod(rows, size)
    part = least + (1 if longer else 0)
    own = least + (1 if rank < longer else 0)
    target = _arrays.empty_like(source, part)
    if not longer and factor == 1.0:
        return source, target, own
    padded = _arrays.empty_like(source, part * size)
    padded[...] = 0
    start = 0
    for other in range(size):
        count = least + (1 if other < longer else 0)
        padded[other * part : other * part + count] = source[start : start + count]
        start += count
    _arrays.scale(padded, factor)
    return padded, target, own
