"""`SyncBatchNorm`: batch normalisation over the batches of all ranks, on CPU and GPU, with Horovod's name."""

from __future__ import annotations

from typing import Optional

import torch
from torch.nn.modules.batchnorm import _BatchNorm

from .. import _reductions
from .._process_sets import global_process_set
from .._reduce_op import Sum


class SyncBatchNorm(_BatchNorm):
    """Normalises over the batches of all ranks, as if they were one. Arguments are those of `torch.nn.BatchNorm1d`; the
    input is of shape (batch, channels, …), and batches may differ in size.

    Raises:
        CollectiveError: a worker was lost, the generation was aborted, or ranks have other channels.
        ValueError: an input of fewer than two dimensions.
    """

    def _check_input_dim(self, input: torch.Tensor) -> None:
        if input.dim() < 2:
            raise ValueError(f"expected an input of at least 2 dimensions, not {input.dim()}")

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        self._check_input_dim(input)
        uses_batch = self.training or not self.track_running_stats
        if not uses_batch or global_process_set.size() == 1:
            return super().forward(input)
        reduced = [dimension for dimension in range(input.dim()) if dimension != 1]
        channels = input.shape[1]
        wide = input.double() if input.dtype == torch.float64 else input.float()
        own_count = wide.new_tensor([float(input.numel() // channels)])
        sums = _reductions.allreduce(torch.cat([wide.sum(reduced), own_count]), op=Sum)
        count = sums[-1].detach()
        mean = sums[:-1] / count
        shape = [1, channels] + [1] * (input.dim() - 2)
        centred = wide - mean.view(shape)
        # Computed from the shared mean: a difference of large sums would lose single precision.
        variance = _reductions.allreduce(centred.square().sum(reduced), op=Sum) / count
        if self.training and self.track_running_stats:
            self._track(mean.detach(), variance.detach(), count)
        normal = centred * torch.rsqrt(variance.view(shape) + self.eps)
        if self.affine:
            normal = normal * self.weight.view(shape) + self.bias.view(shape)
        return normal.to(input.dtype)

    def _track(self, mean: torch.Tensor, variance: torch.Tensor, count: torch.Tensor) -> None:
        running_mean, running_var = self.running_mean, self.running_var
        tracked = self.num_batches_tracked
        if running_mean is None or running_var is None or tracked is None:
            return
        with torch.no_grad():
            tracked.add_(1)
            momentum: Optional[float] = self.momentum
            weight = 1.0 / float(tracked) if momentum is None else momentum
            unbiased = variance * (count / (count - 1).clamp_min(1.0))
            running_mean.lerp_(mean.to(running_mean.dtype), weight)
            running_var.lerp_(unbiased.to(running_var.dtype), weight)
