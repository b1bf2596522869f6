"""`register_shard_hook`: DistributedDataParallel by logical shard, through its communication hook."""

from __future__ import annotations

import weakref
from typing import Dict, Iterator, List, Optional, Set

import torch
from torch.nn.parallel import DistributedDataParallel

from .. import _context
from .._reduce_op import Average
from .._shards import DataShard, ShardedStep, ShardFold, check_shards, reduce_partial


class ShardHook:
    """Folds the gradients of a replica over the tree of shards. Made by `register_shard_hook`."""

    def __init__(self, replica: DistributedDataParallel, shards: int) -> None:
        self._replica, self._shards = replica, shards
        self._folds: Dict[torch.Tensor, ShardFold] = {}
        #: Parameters that have a gradient of the pass under way.
        self._ready: Set[torch.Tensor] = set()
        #: The error of a reduction, which `passes` raises: one that passes through torch's reducer would leave it in the
        #: middle of a backward pass, where its hooks refuse those of the next generation's.
        self._error: Optional[BaseException] = None
        # Parameters and the replica outlive this generation in no case through their hooks: the replica's own would fire
        # beside those of the next one.
        reference = weakref.ref(self)

        def ready(parameter: torch.Tensor) -> None:
            hook = reference()
            if hook is not None:
                hook._ready.add(parameter)

        def reduce(_state, bucket):  # type: ignore[no-untyped-def]  # torch refuses annotations that are text.
            hook = reference()
            assert hook is not None, "keep what register_shard_hook returns as long as the replica"
            return hook._reduce(bucket)

        handles = [
            parameter.register_post_accumulate_grad_hook(ready)
            for parameter in replica.parameters()
            if parameter.requires_grad
        ]
        weakref.finalize(self, lambda: [handle.remove() for handle in handles])
        replica.register_comm_hook(None, reduce)

    def passes(self, step: ShardedStep) -> Iterator[DataShard]:
        """This rank's shards of a step: make one forward and one backward pass for each. Gradients are reduced with the last, and
        added to those that the parameters had before: an optimiser may step after several of these steps.

        Raises:
            CollectiveError: at the end: a worker was lost, or the generation was aborted.
            ValueError: other ranks have another number of shards.
        """
        check_shards(self._shards)
        self._folds = {}
        self._error = None
        accumulated = self._take_accumulated()
        *before, last = step.shards
        for shard in before:
            self._ready.clear()
            with self._replica.no_sync():
                yield shard
            self._take(shard)
        self._ready.clear()
        if self._replica.find_unused_parameters:
            # The replica knows that a pass has used them, and expects gradients of them also where the last does not.
            for parameter in self._folds:
                parameter.grad = torch.zeros_like(parameter)
        yield last
        if self._error is not None:
            error, self._error = self._error, None
            raise error
        for parameter, gradient in accumulated.items():
            parameter.grad = gradient if parameter.grad is None else parameter.grad.add_(gradient)

    def _take_accumulated(self) -> Dict[torch.Tensor, torch.Tensor]:
        """Moves gradients of earlier steps out of the parameters: they are averages over all shards already."""
        accumulated: Dict[torch.Tensor, torch.Tensor] = {}
        for parameter in self._replica.parameters():
            gradient, parameter.grad = parameter.grad, None
            if gradient is not None:
                # It can be a part of the bucket.
                accumulated[parameter] = gradient.clone() if self._replica.gradient_as_bucket_view else gradient
        return accumulated

    def _take(self, shard: DataShard) -> None:
        """Moves the gradients of a shard before the last out of the parameters. Not before the pass has ended: the replica
        takes a parameter without a gradient in its own hook for one that no pass uses, and does not give it the result."""
        for parameter in self._ready:
            gradient, parameter.grad = parameter.grad, None
            if gradient is not None:
                if self._replica.gradient_as_bucket_view:
                    # It can be a part of the bucket, into which the last shard's gradients are written.
                    gradient = gradient.clone()
                fold = self._fold(parameter)
                self._skip(fold, shard.number, gradient)
                fold.add(gradient)

    @staticmethod
    def _skip(fold: ShardFold, until: int, like: torch.Tensor) -> None:
        """Shards before `until` whose loss does not depend on the parameter have a gradient of zero."""
        while fold.next < until:
            fold.add(torch.zeros_like(like))

    def _reduce(self, bucket: torch.distributed.GradBucket) -> torch.futures.Future[torch.Tensor]:
        """A bucket has the gradients of the last shard."""
        future: torch.futures.Future[torch.Tensor] = torch.futures.Future()
        if self._error is None:
            try:
                future.set_result(self._reduced(bucket))
                return future
            except Exception as error:
                self._error = error
        future.set_result(bucket.buffer())
        return future

    def _reduced(self, bucket: torch.distributed.GradBucket) -> torch.Tensor:
        with torch.no_grad():
            rows: List[List[torch.Tensor]] = []
            for parameter, gradient in zip(bucket.parameters(), bucket.gradients()):
                fold = self._fold(parameter)
                self._skip(fold, fold.end - 1, gradient)
                fold.add(gradient.clone())
                rows.append([array.reshape(-1) for array in fold.partial])
            flat = [torch.cat(list(node)) for node in zip(*rows)]
            whole: torch.Tensor = reduce_partial(flat, self._shards, Average, f"ddp_shards.{bucket.index()}")
        return whole

    def _fold(self, parameter: torch.Tensor) -> ShardFold:
        if parameter not in self._folds:
            self._folds[parameter] = ShardFold(_context.shard_deal(self._shards), _context.world().rank)
        return self._folds[parameter]


def register_shard_hook(replica: DistributedDataParallel, shards: int) -> ShardHook:
    """Makes DistributedDataParallel average gradients over the job's logical shards, over a fixed tree: they have the same
    bits in a world of any size. It takes the place of the replica's communication hook. Make it anew with the replica, in
    each generation::

        replica = DistributedDataParallel(model)
        hook = register_shard_hook(replica, shards=8)
        for step in sampler.steps():
            optimizer.zero_grad()
            for shard in hook.passes(step):
                loss_of(replica, shard).backward()
            optimizer.step()

    Keep what is returned as long as the replica. Where a shard's loss does not depend on a parameter, its gradient of this
    shard is zero; make the replica with ``find_unused_parameters=True`` if that can be. Averages of batch normalisation are
    a rank's own, and so not the same in other worlds.

    Args:
        replica: the module, of the process group ``"elastic"`` over all ranks.
        shards: logical shards, as of the `ShardedSampler`.

    Raises:
        RuntimeError: the replica has another communication hook.
    """
    return ShardHook(replica, shards)
