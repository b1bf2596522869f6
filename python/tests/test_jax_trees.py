"""JAX's trees that pickle does not take go back, and over to other ranks, by their leaves."""

import dataclasses
import threading
from typing import Any, Callable

import pytest

jax = pytest.importorskip("jax")

import elastic_node as en  # noqa: E402
from elastic_node import _codec, _jax_trees  # noqa: E402

jnp = jax.numpy


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class Training:
    """As flax's `TrainState` and equinox's modules are: with a function for structure, and one among its leaves."""

    step: Any
    params: Any
    activation: Callable
    optimizer: Callable = dataclasses.field(metadata={"static": True})


def training(rows=3, **more):
    params = {"kernel": jnp.ones((rows, 2)), **more}
    return Training(0, params, lambda x: x, lambda gradient: -gradient)


def trained(tree):
    return dataclasses.replace(tree, step=jnp.asarray(tree.step + 1), params=jax.tree.map(lambda it: it + 1, tree.params))


def copied(state):
    header, buffers = state._capture()
    return header, [bytearray(buffer) for buffer in buffers]


def test_it_goes_back_to_the_commit_with_its_own_structure():
    state = en.elastic.ObjectState(tree=training(), plain=jnp.zeros(2), step=0)
    functions = state.tree.activation, state.tree.optimizer
    state.tree = trained(state.tree)
    state.save()
    state.tree, state.step = trained(state.tree), 5
    state.restore()
    assert (int(state.tree.step), state.step) == (1, 0)
    assert state.tree.params["kernel"].tolist() == [[2, 2]] * 3
    assert (state.tree.activation, state.tree.optimizer) == functions
    assert not isinstance(state.capture()["plain"], _jax_trees.TreeLeaves), "what pickle takes is saved as a whole"


def test_another_rank_takes_it_over_before_its_own_first_commit_and_arrays_keep_their_names():
    state = en.elastic.ObjectState(tree=training())
    state.tree = trained(trained(state.tree))
    newcomer = en.elastic.ObjectState(tree=training())
    own = newcomer.tree.optimizer
    newcomer._apply(*copied(state))
    assert int(newcomer.tree.step) == 2 and newcomer.tree.params["kernel"].tolist() == [[3, 3]] * 3
    assert newcomer.tree.optimizer is own
    assert copied(newcomer) == copied(state), "replicas of the state have equal bytes"
    names = [name[0] for name in _codec.begin_encoding(state.capture(), is_named=True).names]
    assert names == ["tree.step", "tree.params.kernel"]


@pytest.mark.parametrize(
    ("here", "said"),
    [
        (training(bias=jnp.zeros(1)), r"here alone: params.bias; in the commit alone: none"),
        (None, r"here alone: none; in the commit alone: params.kernel, step"),
        (training(rows=4), r"'tree.params.kernel' in the state is float32 \(4, 2\) here, and float32 \(3, 2\) in the commit"),
    ],
)
def test_another_tree_is_refused_by_the_names_of_its_leaves(here, said):
    state = en.elastic.ObjectState(tree=training())
    with pytest.raises(ValueError, match=said):
        en.elastic.ObjectState(tree=here)._apply(*copied(state))


def test_a_leaf_that_cannot_be_saved_is_an_error_still():
    with pytest.raises(TypeError, match="'tree' in the state cannot be saved: cannot pickle '_thread.lock' object"):
        en.elastic.ObjectState(tree=training(lock=threading.Lock())).save()
