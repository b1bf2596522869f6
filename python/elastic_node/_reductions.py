"""All-reduce, with Horovod's names and arguments. Ranks make the same calls, told apart by name, else by their order.

Each is launched by the function with `async` in its name; the one without waits for it.
"""

from __future__ import annotations

from typing import Any, Callable, List, Literal, Optional, Sequence, overload

from . import _arrays, _gradients, _timeline
from ._compression import Compression, Compressor
from ._handle import Handle, waited
from ._process_sets import ProcessSet, global_process_set, group_of
from ._reduce_op import Average, Max, Min, Product, ReduceOp, Sum, resolve
from ._types import Array, Memory

#: The reductions of plain integers whose results are integers.
Whole = Literal[ReduceOp.SUM, ReduceOp.MIN, ReduceOp.MAX, ReduceOp.PRODUCT]


@overload
def allreduce(
    tensor: Array,
    average: Optional[bool] = None,
    name: Optional[str] = None,
    compression: Compressor = Compression.none,
    op: Optional[ReduceOp] = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Array: ...


@overload
def allreduce(
    tensor: int,
    average: None = None,
    name: Optional[str] = None,
    compression: Compressor = Compression.none,
    *,
    op: Whole,
    process_set: ProcessSet = global_process_set,
) -> int: ...


@overload
def allreduce(
    tensor: float,
    average: Optional[bool] = None,
    name: Optional[str] = None,
    compression: Compressor = Compression.none,
    op: Optional[ReduceOp] = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> float: ...


def allreduce(
    tensor: Any,
    average: Optional[bool] = None,
    name: Optional[str] = None,
    compression: Compressor = Compression.none,
    op: Optional[ReduceOp] = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """The reduction of all ranks' tensors; a function of autograd.

    Args:
        tensor: a NumPy array, torch tensor, JAX array or number; of one type and shape on all ranks.
        average: Horovod's older way to say `op`: `True` is `Average`, `False` is `Sum`.
        name: what tells this call apart; without one, its number among the nameless calls. Threads that call at one time
            need names: which of them comes first may differ by rank.
        compression: `Compression.fp16` sends floating-point numbers as those of 16 bits.
        op: `Average` (if nothing is said), `Sum`, `Min`, `Max` or `Product`. Reductions go in the order of the ranks,
            so every rank gets the same bits. The average of integers is rounded towards zero.
        prescale_factor, postscale_factor: multiply before and after.
        process_set: the ranks that take part; all by default.

    Returns:
        A new array of the same type and shape; a number for a number.

    Raises:
        CollectiveError: a worker was lost, the generation was aborted, or ranks made calls that do not match.
        BufferError: on a device that the job's collectives do not reach.
        TypeError: no memory to share; a masked array; `average` or `op` is something else.
        ValueError: elements that cannot be reduced; a call of this name is in progress.
        NotImplementedError: `Adasum`.
    """
    compressed, context = compression.compress(tensor)
    value = waited(
        lambda: allreduce_async(
            compressed, average, name, op, prescale_factor, postscale_factor, process_set
        )
    )
    return compression.decompress(value, context)


@overload
def allreduce_async(
    tensor: Array,
    average: Optional[bool] = None,
    name: Optional[str] = None,
    op: Optional[ReduceOp] = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Handle[Array]: ...


@overload
def allreduce_async(
    tensor: int,
    average: None = None,
    name: Optional[str] = None,
    *,
    op: Whole,
    process_set: ProcessSet = global_process_set,
) -> Handle[int]: ...


@overload
def allreduce_async(
    tensor: float,
    average: Optional[bool] = None,
    name: Optional[str] = None,
    op: Optional[ReduceOp] = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Handle[float]: ...


def allreduce_async(
    tensor: Any,
    average: Optional[bool] = None,
    name: Optional[str] = None,
    op: Optional[ReduceOp] = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Handle[Any]:
    """As `allreduce`, beside this thread.

    Returns:
        A handle: `synchronize` waits for it and returns its result.

    Raises:
        BufferError, TypeError, ValueError: as of `allreduce`. `synchronize` raises its `CollectiveError`.
    """
    reduction = _Reduction(resolve(op, average), prescale_factor, postscale_factor, process_set)
    handle = reduction.of_copies([tensor], name)
    return Handle(handle._native, lambda: handle._result()[0])


def allreduce_(
    tensor: Memory,
    average: Optional[bool] = None,
    name: Optional[str] = None,
    op: Optional[ReduceOp] = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Memory:
    """As `allreduce`, but replaces `tensor`, without a copy.

    Returns:
        `tensor`.

    Raises:
        BufferError, ValueError: also where it is not contiguous, or read-only.
        ValueError: autograd records this tensor.
        TypeError: a JAX array, which cannot be changed.
    """
    return waited(
        lambda: allreduce_async_(
            tensor, average, name, op, prescale_factor, postscale_factor, process_set
        )
    )


def allreduce_async_(
    tensor: Memory,
    average: Optional[bool] = None,
    name: Optional[str] = None,
    op: Optional[ReduceOp] = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Handle[Memory]:
    """As `allreduce_`, beside this thread: leave `tensor` alone until `synchronize`.

    Returns:
        A handle: `synchronize` waits for it and returns `tensor`.

    Raises:
        BufferError, TypeError, ValueError: as of `allreduce_`. `synchronize` raises its `CollectiveError`.
    """
    reduction = _Reduction(resolve(op, average), prescale_factor, postscale_factor, process_set)
    handle = reduction.in_place([tensor], name)
    return Handle(handle._native, lambda: handle._result()[0])


@overload
def grouped_allreduce(
    tensors: Sequence[Array],
    average: Optional[bool] = None,
    name: Optional[str] = None,
    compression: Compressor = Compression.none,
    op: Optional[ReduceOp] = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> List[Array]: ...


@overload
def grouped_allreduce(
    tensors: Sequence[float],
    average: Optional[bool] = None,
    name: Optional[str] = None,
    compression: Compressor = Compression.none,
    op: Optional[ReduceOp] = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> List[float]: ...


def grouped_allreduce(
    tensors: Sequence[Any],
    average: Optional[bool] = None,
    name: Optional[str] = None,
    compression: Compressor = Compression.none,
    op: Optional[ReduceOp] = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> List[Any]:
    """`allreduce` of many tensors as one call: small ones travel together.

    Args:
        tensors: as many, of the same types and shapes, on all ranks; numbers are all of one type.

    Returns:
        The reductions, in the order of `tensors`.

    Raises:
        CollectiveError, BufferError, TypeError, ValueError, NotImplementedError: as of `allreduce`.
    """
    pairs = [compression.compress(tensor) for tensor in tensors]
    compressed = [tensor for tensor, _ in pairs]
    values = waited(
        lambda: grouped_allreduce_async(
            compressed, average, name, op, prescale_factor, postscale_factor, process_set
        )
    )
    return [compression.decompress(value, context) for value, (_, context) in zip(values, pairs)]


@overload
def grouped_allreduce_async(
    tensors: Sequence[Array],
    average: Optional[bool] = None,
    name: Optional[str] = None,
    op: Optional[ReduceOp] = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Handle[List[Array]]: ...


@overload
def grouped_allreduce_async(
    tensors: Sequence[float],
    average: Optional[bool] = None,
    name: Optional[str] = None,
    op: Optional[ReduceOp] = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Handle[List[float]]: ...


def grouped_allreduce_async(
    tensors: Sequence[Any],
    average: Optional[bool] = None,
    name: Optional[str] = None,
    op: Optional[ReduceOp] = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Handle[List[Any]]:
    """As `grouped_allreduce`, beside this thread.

    Returns:
        A handle: `synchronize` waits for it and returns the list of results.

    Raises:
        BufferError, TypeError, ValueError: as of `grouped_allreduce`. `synchronize` raises its `CollectiveError`.
    """
    reduction = _Reduction(resolve(op, average), prescale_factor, postscale_factor, process_set)
    return reduction.of_copies(tensors, name)


def grouped_allreduce_(
    tensors: Sequence[Memory],
    average: Optional[bool] = None,
    name: Optional[str] = None,
    op: Optional[ReduceOp] = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> List[Memory]:
    """`allreduce_` of many tensors as one call: small ones travel together. One that is given twice is reduced once.

    Returns:
        The same tensors, in a list.

    Raises:
        CollectiveError, BufferError, TypeError, NotImplementedError: as of `allreduce_`.
        ValueError: two share a part of their memory.
    """
    return waited(
        lambda: grouped_allreduce_async_(
            tensors, average, name, op, prescale_factor, postscale_factor, process_set
        )
    )


def grouped_allreduce_async_(
    tensors: Sequence[Memory],
    average: Optional[bool] = None,
    name: Optional[str] = None,
    op: Optional[ReduceOp] = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Handle[List[Memory]]:
    """As `grouped_allreduce_`, beside this thread: leave the tensors alone until `synchronize`.

    Returns:
        A handle: `synchronize` waits for it and returns the list of `tensors`.

    Raises:
        BufferError, TypeError, ValueError: as of `grouped_allreduce_`. `synchronize` raises its `CollectiveError`.
    """
    reduction = _Reduction(resolve(op, average), prescale_factor, postscale_factor, process_set)
    return reduction.in_place(tensors, name)


class _Reduction:
    """Settings of an all-reduce, and its launch."""

    def __init__(
        self, op: ReduceOp, prescale_factor: float, postscale_factor: float, process_set: ProcessSet
    ) -> None:
        self.op, self.process_set = op, process_set
        self.prescale_factor, self.postscale_factor = prescale_factor, postscale_factor

    def of_copies(self, tensors: Sequence[Any], name: Optional[str]) -> Handle[List[Any]]:
        is_scaled = (self.prescale_factor, self.postscale_factor) != (1.0, 1.0)
        as_float = self.op is Average or is_scaled
        copies = [_arrays.copy_of(tensor, as_float) for tensor in tensors]
        record = _gradients.recorder(tensors, self.backward)
        return self._launch(
            [copy for copy, _ in copies],
            name,
            lambda: record([back(copy) for copy, back in copies]),
        )

    def in_place(self, tensors: Sequence[Any], name: Optional[str]) -> Handle[List[Any]]:
        return self._launch([_arrays.writable(tensor) for tensor in tensors], name, lambda: list(tensors))

    def backward(self, gradients: Sequence[Any]) -> List[Any]:
        if self.op not in (Average, Sum):
            raise NotImplementedError(f"{self.op} has no gradient here: reduce by Average or Sum")
        return waited(lambda: self.of_copies(gradients, None))

    def _launch(self, memory: List[Any], name: Optional[str], result: Callable[[], List[Any]]) -> Handle[List[Any]]:
        group = group_of(self.process_set)
        # An array that is given twice is scaled once, too.
        distinct = list({_arrays.address(part): part for part in memory}.values())
        integers = [part for part in distinct if self.op is Average and not _arrays.is_floating(part)]
        op = Sum if integers else self.op
        floats = [part for part in distinct if self.op is Average and op is Sum and _arrays.is_floating(part)]
        what = ", ".join(_arrays.described(part) for part in memory)
        what = f"{self.op.name.lower()} of {what}, scaled by {self.prescale_factor} and {self.postscale_factor}"
        call = group.begin("allreduce" if len(memory) == 1 else "grouped_allreduce", name, what)
        with _arrays.naming_types(memory):
            call.all_reduce(memory, op.value)  # pyright: ignore[reportArgumentType]  # `resolve` refuses Adasum.
        for part in distinct:
            _arrays.scale(part, self.prescale_factor)

        def finish() -> List[Any]:
            for part in integers:
                _arrays.divide(part, group.size)
            for part in floats:
                _arrays.scale(part, 1.0 / group.size)
            for part in distinct:
                _arrays.scale(part, self.postscale_factor)
            value: List[Any] = result()
            return value

        return Handle(_timeline.launch(group, call, "ALLREDUCE", name), finish)
