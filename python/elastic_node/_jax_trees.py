"""JAX's trees whose structure pickle does not take, such as flax's `TrainState`, which has functions in it: their leaves are
saved, and each rank keeps the structure that its own program has made. `ObjectState` uses it."""

from __future__ import annotations

import sys
from typing import Any, Iterable, List, NamedTuple, Tuple

from . import _jax_arrays


class TreeLeaves(NamedTuple):
    """The saved part of such a tree."""

    #: The keys and attributes that lead to each leaf.
    names: Tuple[str, ...]
    leaves: List[Any]


def has_arrays(value: Any) -> bool:
    """Whether it is a tree with arrays of JAX in it."""
    jax = sys.modules.get("jax")
    if jax is None or not hasattr(jax, "tree_util"):
        return False
    try:
        return any(map(_jax_arrays.is_jax_array, jax.tree_util.tree_leaves(value)))
    except (TypeError, ValueError):
        # JAX refuses dictionaries whose keys have no order.
        return False


def leaves_of(value: Any) -> TreeLeaves:
    """The leaves of a tree, but for functions, which are taken for structure."""
    saved = [(name, leaf) for name, leaf in _named(value) if not callable(leaf)]
    return TreeLeaves(tuple(name for name, _ in saved), [leaf for _, leaf in saved])


def _named(value: Any) -> List[Tuple[str, Any]]:
    found, _ = sys.modules["jax"].tree_util.tree_flatten_with_path(value)
    return [(".".join(map(_jax_arrays.name_of, path)), leaf) for path, leaf in found]


def with_leaves(value: Any, content: TreeLeaves, path: str) -> Any:
    """A tree of the structure of `value` with these leaves, which are placed as its own are.

    Args:
        content: the result of `leaves_of`, here or on another rank.
        path: the name of the value.

    Raises:
        ValueError: the value has other leaves, or an array of another shape or type.
    """
    import jax

    own = _named(value)
    names = [name for name, leaf in own if not callable(leaf)]
    if names != list(content.names):
        raise ValueError(
            f"{path!r} in the state is a tree of which the leaves alone are saved, and it has others here than in the commit "
            f"(here alone: {_difference(names, content.names)}; in the commit alone: {_difference(content.names, names)}): every "
            "rank makes the same tree before elastic_node.elastic.run"
        )
    taken = iter(content.leaves)
    leaves = [leaf if callable(leaf) else _given(leaf, next(taken), f"{path}.{name}") for name, leaf in own]
    return jax.tree_util.tree_unflatten(jax.tree_util.tree_structure(value), leaves)


def _given(held: Any, taken: Any, path: str) -> Any:
    here, there = _described(held), _described(taken)
    # A counter may be a number before the first step, and an array after it.
    if here and there and here != there:
        raise ValueError(f"{path!r} in the state is {here} here, and {there} in the commit: every rank makes the same tree")
    return _jax_arrays.placed(taken, held)


def _described(leaf: Any) -> str:
    return f"{leaf.dtype} {tuple(leaf.shape)}" if hasattr(leaf, "dtype") and hasattr(leaf, "shape") else ""


def _difference(names: Iterable[str], others: Iterable[str]) -> str:
    return ", ".join(sorted(set(names).difference(others))) or "none"
