"""Parts of a state that stay the objects that they are, such as modules and optimisers: they are captured as their content, and
given it back. They are attributes of the state, or in its lists, tuples and dictionaries. `ObjectState` uses it."""

from __future__ import annotations

from typing import Any, Callable, Iterable, Iterator, NamedTuple, Protocol, Tuple

from . import _jax_arrays

#: Types without any parts, which make up most of a state that is no array.
LEAVES = (str, bytes, bytearray, int, float, bool, complex, type(None))

#: Most levels of lists, tuples and dictionaries in which such objects are looked for.
_DEPTH_MAX = 32


class Kinds(Protocol):
    """The state that knows its kinds of such objects."""

    def _is_holder(self, value: Any) -> bool: ...

    def _content_of(self, holder: Any) -> Any: ...

    def _give(self, holder: Any, content: Any) -> None: ...


class HeldContent(NamedTuple):
    """The content of such an object in a list, a tuple or a dictionary."""

    content: Any


def captured(value: Any, kinds: Kinds) -> Any:
    """A value with `HeldContent` in the place of each object that stays."""
    if kinds._is_holder(value):
        return HeldContent(kinds._content_of(value))
    if not _has(value, kinds._is_holder):
        return value
    parts = [(key, captured(part, kinds)) for key, part in _parts_of(value)]
    return dict(parts) if isinstance(value, dict) else [part for _, part in parts]


def given(value: Any, content: Any, kinds: Kinds, path: str) -> Any:
    """The value with this content: objects that stay are given theirs, and so do containers that have one; all else is replaced,
    and JAX's arrays are placed as they were.

    Args:
        content: the result of `captured`, here or on another rank.
        path: the name of the value.

    Raises:
        ValueError: the content has such an object where the value has none, or the other way round.
    """
    if isinstance(content, HeldContent):
        if not kinds._is_holder(value):
            raise ValueError(_UNLIKE.format(path=path, here="none", there="one"))
        kinds._give(value, content.content)
        return value
    if kinds._is_holder(value):
        raise ValueError(_UNLIKE.format(path=path, here="one", there="none"))
    is_alike = isinstance(content, dict) if isinstance(value, dict) else isinstance(content, (list, tuple))
    has_one_here = is_alike and _has(value, kinds._is_holder)
    if not has_one_here and not _has(content, lambda part: isinstance(part, HeldContent)):
        return _jax_arrays.placed_as(content, value)
    parts = {key: given(_part_of(value, key), part, kinds, f"{path}.{key}") for key, part in _parts_of(content)}
    if isinstance(value, dict):
        value.clear()
        value.update(parts)
        return value
    if isinstance(value, list):
        value[:] = parts.values()
        return value
    return type(value)(*parts.values()) if hasattr(value, "_fields") else tuple(parts.values())


_UNLIKE = (
    "{path!r} in the state is a module, an optimiser or the like in the commit or here alone (here: {here}; in the commit: "
    "{there}): every rank has them in the same places, from the beginning on"
)


def found(value: Any, is_one: Callable[[Any], bool], depth: int = 0) -> Iterator[Any]:
    """The parts of a list, a tuple or a dictionary, and of those in it, that are such ones."""
    # A list may have millions of numbers, and every commit looks at them.
    if depth > _DEPTH_MAX or set(map(type, _values_in(value))).issubset(LEAVES):
        return
    for part in _values_in(value):
        if is_one(part):
            yield part
        else:
            yield from found(part, is_one, depth + 1)


def _has(value: Any, is_one: Callable[[Any], bool]) -> bool:
    return any(True for _ in found(value, is_one))


def _values_in(value: Any) -> Iterable[Any]:
    if isinstance(value, HeldContent):
        return ()
    if isinstance(value, dict):
        return value.values()
    return value if isinstance(value, (list, tuple)) else ()


def _parts_of(value: Any) -> Iterable[Tuple[Any, Any]]:
    return value.items() if isinstance(value, dict) else enumerate(_values_in(value))


def _part_of(value: Any, key: Any) -> Any:
    try:
        return value[key]
    except (IndexError, KeyError, TypeError):
        return None
