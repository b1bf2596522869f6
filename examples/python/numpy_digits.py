"""Reads handwritten digits with NumPy alone: softmax regression.

    elastic-node run -n 4 -- examples/python/numpy_digits.py

By itself, `python numpy_digits.py` is a world of one.
"""

from __future__ import annotations

import argparse
import time

import numpy
from numpy.typing import NDArray

import digits
import elastic_node as en

arguments = argparse.ArgumentParser(description=__doc__)
arguments.add_argument("--epochs", type=int, default=20)
arguments.add_argument("--step-ms", type=float, default=0, help="least time of a step")
options = arguments.parse_args()

en.init()
images, labels, test_images, test_labels = digits.load()


class Digits(en.elastic.ObjectState):
    """What survives the loss of a worker."""

    weights: NDArray[numpy.float32]
    sampler: en.elastic.ElasticSampler


state = Digits(
    weights=numpy.zeros((digits.PIXELS, digits.CLASSES), numpy.float32),
    sampler=en.elastic.ElasticSampler(images),
)


@en.elastic.run
def train(state: Digits) -> None:
    while state.sampler.epoch < options.epochs:
        for batch in state.sampler.batches(16):
            x, y = images[batch.indices], labels[batch.indices]
            scores = x @ state.weights
            odds = numpy.exp(scores - scores.max(axis=1, keepdims=True))
            error = odds / odds.sum(axis=1, keepdims=True) - numpy.eye(digits.CLASSES)[y]
            gradient = (x.T @ error / max(len(y), 1) * batch.weight).astype(numpy.float32)
            state.weights -= 0.5 * en.allreduce(gradient)
            time.sleep(options.step_ms / 1000)
            state.commit()
        state.sampler.set_epoch(state.sampler.epoch + 1)
    accuracy = float(numpy.mean((test_images @ state.weights).argmax(axis=1) == test_labels))
    if en.rank() == 0:
        print(f"accuracy {accuracy:.3f} with {en.size()} workers", flush=True)


train(state)
