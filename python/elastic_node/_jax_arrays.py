"""JAX's arrays and trees, for `_codec` and `elastic`. Nothing here imports JAX: where the program has not, there are no such arrays."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, List, Tuple

if TYPE_CHECKING:
    import jax


def is_jax_array(value: Any) -> bool:
    """Whether it is an array of JAX that can be had as numbers. Keys of random generators of a type of their own cannot, nor can
    arrays that are partly in other processes."""
    jax = sys.modules.get("jax")
    if jax is None or not hasattr(jax, "Array") or not isinstance(value, jax.Array):
        return False
    return bool(value.is_fully_addressable) and not jax.dtypes.issubdtype(value.dtype, jax.dtypes.extended)


def bytes_of(value: jax.Array) -> Any:
    """The content in main memory: an array of bytes, in the order of rows."""
    import numpy

    return numpy.ascontiguousarray(numpy.asarray(value)).reshape(-1).view(numpy.uint8)


def jax_array_of(data: Any, dtype: str, shape: Tuple[int, ...], is_weak: bool) -> jax.Array:
    """The array, on JAX's default device. Its type is as it was, by which JAX chooses the types of results and the compiled
    functions: `is_weak` says that it was that of a Python number.

    Raises:
        ValueError: this process has no such type enabled.
    """
    import jax
    import numpy

    content = numpy.frombuffer(data, dtype=jax.numpy.dtype(dtype)).reshape(shape)
    array: Any = jax.device_put(content)
    if array.dtype != content.dtype:
        raise ValueError(
            f"the state has an array of {dtype}, and JAX would make it {array.dtype} here: set jax_enable_x64 on every rank, "
            "and before elastic_node.elastic.run"
        )
    if is_weak:
        # As JAX's own unpickling does.
        array.aval = array.aval.update(weak_type=True)
    return array  # type: ignore[no-any-return]  # JAX's types may be missing.


def children_of(value: Any) -> List[Tuple[str, Any]]:
    """The parts of an object that is registered as a node of JAX's trees, by their names; nothing of any other object."""
    jax = sys.modules.get("jax")
    if jax is None or not hasattr(jax, "tree_util"):
        return []
    found, _ = jax.tree_util.tree_flatten_with_path(value, is_leaf=lambda part: part is not value)
    return [(name_of(path[0]), part) for path, part in found if path]


def name_of(key: Any) -> str:
    """A part of the way to a leaf of a tree: the key of a dictionary, an attribute, a position."""
    for attribute in ("key", "name", "idx"):
        if hasattr(key, attribute):
            return str(getattr(key, attribute))
    return str(key)


def placed_as(value: Any, holder: Any) -> Any:
    """`value`, with each array on the devices on which `holder` has the one in its place, if the program has chosen them.
    So a state that goes back, or is taken over, is where this rank's program has put it, whatever the devices of others are."""
    jax = sys.modules.get("jax")
    if jax is None or not hasattr(jax, "tree_util"):
        return value
    tree = jax.tree_util
    try:
        is_alike = tree.tree_structure(value) == tree.tree_structure(holder)
    except (TypeError, ValueError):
        # JAX refuses dictionaries whose keys have no order.
        is_alike = False
    return tree.tree_map(placed, value, holder) if is_alike else value


def placed(taken: Any, held: Any) -> Any:
    """An array on the devices on which `held` is, if the program has chosen them; anything else as it is."""
    has_place = is_jax_array(taken) and is_jax_array(held) and getattr(held, "committed", False)
    return sys.modules["jax"].device_put(taken, held.sharding) if has_place and taken.shape == held.shape else taken
