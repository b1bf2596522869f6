"""Reads handwritten digits with NumPy alone: softmax regression.

    elastic-node run -n 4 -- examples/python/numpy_digits.py

By itself, `python numpy_digits.py` is a world of one.
"""

from __future__ import annotations

import argparse
import hashlib
import time
from typing import Iterator, Union

import numpy
from numpy.typing import NDArray

import digits
import elastic_node as en

arguments = argparse.ArgumentParser(description=__doc__)
arguments.add_argument("--epochs", type=int, default=20)
arguments.add_argument("--step-ms", type=float, default=0, help="least time of a step")
arguments.add_argument("--shards", type=int, help="logical shards: the weights do not depend on the number of workers")
options = arguments.parse_args()

en.init()
images, labels, test_images, test_labels = digits.load()


class Digits(en.elastic.ObjectState):
    """The state that survives the loss of a worker."""

    weights: NDArray[numpy.float32]
    sampler: Union[en.elastic.ElasticSampler, en.elastic.ShardedSampler]


sharded = en.elastic.ShardedSampler(images, 16 * (options.shards or 1), options.shards)
state = Digits(
    weights=numpy.zeros((digits.PIXELS, digits.CLASSES), numpy.float32),
    sampler=sharded if options.shards else en.elastic.ElasticSampler(images),
)


def gradient(batch: Union[en.elastic.Batch, en.elastic.DataShard]) -> NDArray[numpy.float32]:
    x, y = images[batch.indices], labels[batch.indices]
    scores = x @ state.weights
    odds = numpy.exp(scores - scores.max(axis=1, keepdims=True, initial=0))
    error = odds / odds.sum(axis=1, keepdims=True) - numpy.eye(digits.CLASSES)[y]
    mean: NDArray[numpy.float32] = (x.T @ error / max(len(y), 1) * batch.weight).astype(numpy.float32)
    return mean


def gradients(
    sampler: Union[en.elastic.ElasticSampler, en.elastic.ShardedSampler],
) -> Iterator[NDArray[numpy.float32]]:
    """The mean gradient of each step that is left of the epoch."""
    if isinstance(sampler, en.elastic.ShardedSampler):
        for step in sampler.steps():
            yield step.allreduce(gradient)
    else:
        for batch in sampler.batches(16):
            yield en.allreduce(gradient(batch))


@en.elastic.run
def train(state: Digits) -> None:
    while state.sampler.epoch < options.epochs:
        for mean in gradients(state.sampler):
            state.weights -= 0.5 * mean
            time.sleep(options.step_ms / 1000)
            state.commit()
        state.sampler.set_epoch(state.sampler.epoch + 1)
    accuracy = float(numpy.mean((test_images @ state.weights).argmax(axis=1) == test_labels))
    if en.rank() == 0:
        print(f"accuracy {accuracy:.3f} with {en.size()} workers", flush=True)
        if options.shards:
            print("sha256", hashlib.sha256(state.weights.tobytes()).hexdigest(), flush=True)


train(state)
