"""Reads handwritten digits with PyTorch by logical shards: the weights at the end are the same, bit for bit, for any number of
workers up to the number of shards, whatever happens to them.

    elastic-node run -n 3 -- examples/python/torch_sharded_digits.py --shards 8

By itself, `python torch_sharded_digits.py` is a world of one.
"""

from __future__ import annotations

import argparse
import hashlib
import time

import torch

import digits
import elastic_node.torch as en

arguments = argparse.ArgumentParser(description=__doc__)
arguments.add_argument("--epochs", type=int, default=10)
arguments.add_argument("--shards", type=int, default=8)
arguments.add_argument("--step-ms", type=float, default=0, help="least time of a step")
options = arguments.parse_args()

en.init()
torch.set_num_threads(1)
torch.manual_seed(0)
torch.use_deterministic_algorithms(True)
images, labels, test_images, test_labels = map(torch.from_numpy, digits.load())
model = torch.nn.Sequential(
    torch.nn.Linear(digits.PIXELS, 48),
    torch.nn.ReLU(),
    torch.nn.Dropout(0.1),
    torch.nn.Linear(48, digits.CLASSES),
)


class Digits(en.elastic.TorchState):
    """The state that survives the loss of a worker."""

    model: torch.nn.Module
    optimizer: torch.optim.Optimizer
    sampler: en.elastic.ShardedSampler


state = Digits(
    model=model,
    optimizer=en.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9),
        named_parameters=model.named_parameters(),
        shards=options.shards,
    ),
    sampler=en.elastic.ShardedSampler(images, 16 * options.shards, options.shards),
)


@en.elastic.run
def train(state: Digits) -> None:
    state.model.train()
    while state.sampler.epoch < options.epochs:
        for step in state.sampler.steps():
            state.optimizer.zero_grad()
            for shard in step.shards:
                torch.manual_seed(shard.seed)  # Dropout is the shard's, not the rank's.
                scores = state.model(images[shard.indices])
                loss = torch.nn.functional.cross_entropy(scores, labels[shard.indices], reduction="sum")
                (loss * shard.weight / max(len(shard.indices), 1)).backward()
            state.optimizer.step()
            time.sleep(options.step_ms / 1000)
            state.commit()
        state.sampler.set_epoch(state.sampler.epoch + 1)
    state.model.eval()
    with torch.no_grad():
        accuracy = (state.model(test_images).argmax(1) == test_labels).float().mean().item()
    if en.rank() == 0:
        print(f"accuracy {accuracy:.3f} with {en.size()} workers", flush=True)
        weights = b"".join(value.numpy().tobytes() for value in state.model.state_dict().values())
        print("sha256", hashlib.sha256(weights).hexdigest(), flush=True)


train(state)
