"""Reads handwritten digits with JAX on the CPU.

    elastic-node run -n 4 -- examples/python/jax_digits.py

By itself, `python jax_digits.py` is a world of one.
"""

from __future__ import annotations

import argparse
import time
from typing import Dict, Mapping, Union

import jax
import jax.numpy as jnp
import numpy
from numpy.typing import NDArray

import digits
import elastic_node as en

Array = Union[jax.Array, NDArray[numpy.floating]]

arguments = argparse.ArgumentParser(description=__doc__)
arguments.add_argument("--epochs", type=int, default=10)
arguments.add_argument("--step-ms", type=float, default=0, help="least time of a step")
options = arguments.parse_args()

en.init()
images, labels, test_images, test_labels = digits.load()


def scores(weights: Mapping[str, Array], x: Array) -> jax.Array:
    return jnp.tanh(x @ weights["hidden"]) @ weights["output"]


@jax.jit
def gradient(weights: Dict[str, jax.Array], x: jax.Array, y: jax.Array) -> Dict[str, jax.Array]:
    def loss(weights: Dict[str, jax.Array]) -> jax.Array:
        return -jnp.mean(jax.nn.log_softmax(scores(weights, x))[jnp.arange(len(y)), y])

    slopes: Dict[str, jax.Array] = jax.grad(loss)(weights)
    return slopes


class Digits(en.elastic.ObjectState):
    """The state that survives the loss of a worker."""

    weights: Dict[str, NDArray[numpy.float32]]
    sampler: en.elastic.ElasticSampler


random = numpy.random.default_rng(0)
state = Digits(
    # NumPy arrays, which the state saves without a copy, and JAX takes as they are.
    weights={
        "hidden": random.normal(0, 0.1, (digits.PIXELS, 48)).astype(numpy.float32),
        "output": random.normal(0, 0.1, (48, digits.CLASSES)).astype(numpy.float32),
    },
    sampler=en.elastic.ElasticSampler(images),
)


@en.elastic.run
def train(state: Digits) -> None:
    while state.sampler.epoch < options.epochs:
        for batch in state.sampler.batches(16):
            if batch.indices:
                slopes = gradient(state.weights, images[batch.indices], labels[batch.indices])
            else:
                slopes = jax.tree.map(jnp.zeros_like, state.weights)
            names = sorted(slopes)
            means = en.grouped_allreduce([slopes[name] * batch.weight for name in names])
            for name, mean in zip(names, means):
                state.weights[name] -= 0.5 * numpy.asarray(mean)
            time.sleep(options.step_ms / 1000)
            state.commit()
        state.sampler.set_epoch(state.sampler.epoch + 1)
    accuracy = float(jnp.mean(scores(state.weights, test_images).argmax(axis=1) == test_labels))
    if en.rank() == 0:
        print(f"accuracy {accuracy:.3f} with {en.size()} workers", flush=True)


train(state)
