"""Trains weights alike on all ranks, flips one bit of rank 1's at a commit, and says what the others see of it.

argv: `numpy`, `torch` or `jax`; the commit.
"""

import json
import sys

import numpy as np

import elastic_node

COMMITS = 400


class Own:
    """Statistics that each rank has of its own."""

    def __init__(self):
        self.mean = np.zeros(64, np.float32)

    def update(self, rank, step):
        self.mean += np.float32(0.1) * (np.float32(rank + step) - self.mean)

    def state_dict(self):
        return {"mean": self.mean}

    def load_state_dict(self, content):
        self.mean = content["mean"]


def flip(numbers):
    """Flips one bit, whatever the numbers' type."""
    words = numbers.view(np.uint32)
    words[len(words) // 2] ^= np.uint32(1 << 20)


def with_numpy():
    state = elastic_node.elastic.ObjectState(
        weights=np.ones(200_000, np.float32), step=0, own=Own(), declared=Own()
    )
    return state, lambda: state.weights


def with_torch():
    import torch

    from elastic_node.torch import TorchState

    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(300, 300), torch.nn.BatchNorm1d(300))
    optimizer = torch.optim.Adam(model.parameters())
    state = TorchState(model=model, optimizer=optimizer, step=0, own=Own(), declared=Own())
    return state, lambda: model[0].weight.detach().view(-1).numpy()


def with_jax():
    import jax.numpy as jnp

    state = elastic_node.elastic.ObjectState(
        params={"layers": [{"kernel": jnp.ones((400, 500), jnp.float32)}]}, step=0, own=Own(), declared=Own()
    )
    return state, lambda: np.asarray(state.params["layers"][0]["kernel"])


def flip_in_jax(state):
    """Flips one bit: arrays of JAX are not changed, but made anew."""
    import jax.numpy as jnp

    kernel = np.array(state.params["layers"][0]["kernel"])
    flip(kernel.reshape(-1))
    state.params["layers"][0]["kernel"] = jnp.asarray(kernel)


def learn(state, weights, rank, size):
    gradient = np.full(8, rank + 1, np.float32)
    mean = elastic_node.allreduce(gradient, op=elastic_node.Average)
    if hasattr(state, "optimizer"):
        import torch

        state.model(torch.full((4, 300), float(rank + state.step)))
        for parameter in state.model.parameters():
            parameter.grad = torch.full_like(parameter, float(mean[0]))
        state.optimizer.step()
    elif hasattr(state, "params"):
        layer = state.params["layers"][0]
        layer["kernel"] = layer["kernel"] + np.float32(0.001) * mean[0]
    else:
        weights()[:] += np.float32(0.001) * mean[0]


@elastic_node.elastic.run
def train(state, weights, at):
    rank, size = elastic_node.rank(), elastic_node.size()
    while state.step < COMMITS:
        learn(state, weights, rank, size)
        state.own.update(rank, state.step)
        state.declared.update(rank, state.step)
        state.step += 1
        if state.step == at and rank == 1:
            flip_in_jax(state) if hasattr(state, "params") else flip(weights())
        state.commit()
    import zlib

    print(json.dumps({"rank": rank, "crc": zlib.crc32(weights().tobytes())}), flush=True)


def main():
    elastic_node.init()
    state, weights = {"numpy": with_numpy, "torch": with_torch, "jax": with_jax}[sys.argv[1]]()
    state.register_per_rank("declared")
    train(state, weights, int(sys.argv[2]))


main()
