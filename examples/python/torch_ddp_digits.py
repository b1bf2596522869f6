"""Reads handwritten digits with PyTorch's DistributedDataParallel, and survives the loss of any worker in place.

    elastic-node run -n 4 -- examples/python/torch_ddp_digits.py

By itself, `python torch_ddp_digits.py` is a world of one.
"""

from __future__ import annotations

import argparse
import hashlib
import time
from typing import Iterable, Iterator, Optional, Union

import torch
from torch.nn.parallel import DistributedDataParallel

import digits
import elastic_node.torch as en

arguments = argparse.ArgumentParser(description=__doc__)
arguments.add_argument("--epochs", type=int, default=10)
arguments.add_argument("--step-ms", type=float, default=0, help="least time of a step")
arguments.add_argument("--shards", type=int, help="logical shards: the weights do not depend on the number of workers")
options = arguments.parse_args()

en.init()
torch.set_num_threads(1)
torch.manual_seed(0)
images, labels, test_images, test_labels = map(torch.from_numpy, digits.load())
model = torch.nn.Sequential(
    torch.nn.Linear(digits.PIXELS, 48), torch.nn.ReLU(), torch.nn.Linear(48, digits.CLASSES)
)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


class Digits(en.elastic.TorchState):
    """The state that survives the loss of a worker."""

    model: torch.nn.Module
    optimizer: torch.optim.Optimizer
    scheduler: torch.optim.lr_scheduler.LRScheduler
    sampler: Union[en.elastic.ElasticSampler, en.elastic.ShardedSampler]


sharded = en.elastic.ShardedSampler(images, 16 * (options.shards or 1), options.shards)
state = Digits(
    model=model,
    optimizer=optimizer,
    scheduler=torch.optim.lr_scheduler.StepLR(optimizer, step_size=5, gamma=0.5),
    sampler=sharded if options.shards else en.elastic.ElasticSampler(images),
)

Batches = Iterable[Union[en.elastic.Batch, en.elastic.DataShard]]


def steps(state: Digits, hook: Optional[en.ShardHook]) -> Iterator[Batches]:
    """The batches of each step that is left of the epoch: one, or one of each of this rank's shards."""
    if hook and isinstance(state.sampler, en.elastic.ShardedSampler):
        yield from map(hook.passes, state.sampler.steps())
    elif isinstance(state.sampler, en.elastic.ElasticSampler):
        yield from ([batch] for batch in state.sampler.batches(16))


@en.elastic.run
def train(state: Digits) -> None:
    en.init_process_group()  # of this generation: it ends with it
    replica = DistributedDataParallel(state.model)
    hook = en.register_shard_hook(replica, options.shards) if options.shards else None
    while state.sampler.epoch < options.epochs:
        for batches in steps(state, hook):
            state.optimizer.zero_grad()
            for batch in batches:
                scores = replica(images[batch.indices])
                loss = torch.nn.functional.cross_entropy(scores, labels[batch.indices], reduction="sum")
                (loss * batch.weight / max(len(batch.indices), 1)).backward()
            state.optimizer.step()
            time.sleep(options.step_ms / 1000)
            state.commit()
        state.scheduler.step()
        state.sampler.set_epoch(state.sampler.epoch + 1)
    with torch.no_grad():
        accuracy = (state.model(test_images).argmax(1) == test_labels).float().mean().item()
    if en.rank() == 0:
        print(f"accuracy {accuracy:.3f} with {en.size()} workers", flush=True)
        if options.shards:
            weights = b"".join(value.numpy().tobytes() for value in state.model.state_dict().values())
            print("sha256", hashlib.sha256(weights).hexdigest(), flush=True)


train(state)
