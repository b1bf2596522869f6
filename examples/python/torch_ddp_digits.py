"""Reads handwritten digits with PyTorch's DistributedDataParallel, and survives the loss of any worker in place.

    elastic-node run -n 4 -- examples/python/torch_ddp_digits.py

By itself, `python torch_ddp_digits.py` is a world of one.
"""

from __future__ import annotations

import argparse
import time

import torch
from torch.nn.parallel import DistributedDataParallel

import digits
import elastic_node.torch as en

arguments = argparse.ArgumentParser(description=__doc__)
arguments.add_argument("--epochs", type=int, default=10)
arguments.add_argument("--step-ms", type=float, default=0, help="least time of a step")
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
    """What survives the loss of a worker."""

    model: torch.nn.Module
    optimizer: torch.optim.Optimizer
    scheduler: torch.optim.lr_scheduler.LRScheduler
    sampler: en.elastic.ElasticSampler


state = Digits(
    model=model,
    optimizer=optimizer,
    scheduler=torch.optim.lr_scheduler.StepLR(optimizer, step_size=5, gamma=0.5),
    sampler=en.elastic.ElasticSampler(images),
)


@en.elastic.run
def train(state: Digits) -> None:
    en.init_process_group()  # of this generation: it ends with it
    replica = DistributedDataParallel(state.model)
    while state.sampler.epoch < options.epochs:
        for batch in state.sampler.batches(16):
            scores = replica(images[batch.indices])
            loss = torch.nn.functional.cross_entropy(scores, labels[batch.indices], reduction="sum")
            state.optimizer.zero_grad()
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


train(state)
