"""A JAX training whose state is trees of arrays on the second device, which takes its time, so that every one of its processes can
be killed. At its end it says what it holds.

argv: the steps.
"""

import json
import os
import sys
import time
from typing import Any, NamedTuple

os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=2"

import jax
import jax.numpy as jnp
import numpy as np
from dataclasses import dataclass

import elastic_node

STEP_S = 0.02


class Moments(NamedTuple):
    mean: Any
    count: Any


@jax.tree_util.register_dataclass
@dataclass
class Layer:
    kernel: jax.Array
    bias: jax.Array


class Scale:
    """A node of trees that is no dataclass."""

    def __init__(self, by):
        self.by = by


jax.tree_util.register_pytree_with_keys(
    Scale,
    lambda scale: (((jax.tree_util.GetAttrKey("by"), scale.by),), None),
    lambda _, parts: Scale(*parts),
)


def first_state():
    second = jax.devices()[1]
    params = {
        "layers": [Layer(jnp.ones((4, 3), jnp.bfloat16), jnp.zeros(3, jnp.float32))],
        "scale": Scale(jnp.full((2, 2), 2.0, jnp.float32)),
    }
    moments = Moments(jnp.zeros((4, 3), jnp.float32), jnp.zeros((), jnp.int32))
    params, moments = jax.device_put((params, moments), second)
    return elastic_node.elastic.ObjectState(
        params=params, moments=(moments,), weak=jnp.asarray(1.0), key=jax.random.key(3), step=0
    )


@jax.jit
def update(params, moments, gradient):
    params = jax.tree.map(lambda leaf: leaf + gradient.astype(leaf.dtype) / 1024, params)
    return params, (Moments(moments[0].mean * 0.5 + gradient, moments[0].count + 1),)


@elastic_node.elastic.run
def train(state, steps):
    process.setdefault("began_at", state.step)
    while state.step < steps:
        mean = elastic_node.allreduce(np.ones(1, np.float32), op=elastic_node.Average)
        state.params, state.moments = update(state.params, state.moments, mean[0])
        state.key, _ = jax.random.split(state.key)
        state.step += 1
        time.sleep(STEP_S)
        state.commit()


process = {}
elastic_node.init()
state = first_state()
train(state, int(sys.argv[1]))
leaves = jax.tree.leaves((state.params, state.moments))
print(
    json.dumps(
        {
            "rank": elastic_node.rank(),
            "began_at": process["began_at"],
            "count": int(state.moments[0].count),
            "kernel": float(state.params["layers"][0].kernel[0, 0]),
            "types": [str(leaf.dtype) for leaf in leaves],
            "are_jax": all(isinstance(leaf, jax.Array) for leaf in leaves),
            "devices": sorted({device.id for leaf in leaves for device in leaf.devices()}),
            "is_weak": bool(state.weak.weak_type),
            "key": np.asarray(jax.random.key_data(state.key)).tolist(),
        }
    ),
    flush=True,
)
