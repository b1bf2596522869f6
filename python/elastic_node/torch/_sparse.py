"""Sums and averages of sparse tensors. Programs call it, and `DistributedOptimizer` for sparse gradients."""

from __future__ import annotations

from typing import Callable, Optional

import torch

from .. import _exchanges
from .._process_sets import ProcessSet, global_process_set, group_of
from .._reduce_op import Average, ReduceOp, Sum, resolve


def sparse_allreduce_async(
    tensor: torch.Tensor,
    name: Optional[str] = None,
    op: Optional[ReduceOp] = None,
    process_set: ProcessSet = global_process_set,
) -> Callable[[], torch.Tensor]:
    """The sum or average of all ranks' sparse (COO) tensors, beside this thread.

    Args:
        tensor: sparse, of one shape and type on all ranks; the number of its elements may differ.
        name, process_set: see `allreduce`.
        op: `Average` (if nothing is said) or `Sum`.

    Returns:
        A function that waits for the sum, and returns it as a sparse tensor, not coalesced. Its errors are those of `allreduce`.

    Raises:
        ValueError: a tensor that is not sparse; another reduction.
    """
    op = resolve(op)
    if not tensor.is_sparse:
        raise ValueError("sparse_allreduce_async takes sparse tensors: use allreduce_async")
    if op not in (Average, Sum):
        raise ValueError(f"sparse tensors have no reduction {op}: take Average or Sum")
    size = group_of(process_set).size
    indices = tensor._indices().transpose(0, 1).contiguous()
    label = name or "sparse"
    # Both go into one call, with one name or number, so that ranks cannot mix them up.
    handle = _exchanges.grouped_allgather_async(
        [indices, tensor._values().detach()], name=name and f"{label}.indices_and_values", process_set=process_set
    )

    def wait() -> torch.Tensor:
        all_indices, values = handle.wait()
        if op is Average:
            values = values / size
        return torch.sparse_coo_tensor(all_indices.transpose(0, 1), values, tensor.shape, device=values.device)

    return wait
