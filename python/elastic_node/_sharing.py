"""Whether an object may refer to a part of itself in two places, as a module with tied weights does. Only such an object is written
with pickle's memo, which costs the equal bytes of equal content some care. `_codec` uses it."""

from __future__ import annotations

import datetime
import decimal
import enum
import fractions
import gc
import pathlib
import sys
import types
import uuid
from typing import Any, Dict, List, Optional, Set

from . import _jax_arrays, _torch_tensors

#: Types of values that cannot change, and that refer to nothing that can: whether two places have one or two of them makes no
#: difference.
_CONSTANT = (
    str,
    bytes,
    int,
    float,
    bool,
    complex,
    type(None),
    type(...),
    type(NotImplemented),
    range,
    datetime.date,
    datetime.time,
    datetime.timedelta,
    datetime.tzinfo,
    decimal.Decimal,
    fractions.Fraction,
    uuid.UUID,
    pathlib.PurePath,
    enum.Enum,
    type,
    types.ModuleType,
    types.FunctionType,
    types.BuiltinFunctionType,
    types.CodeType,
)

#: The same types, for a fast answer to most questions.
_EXACT = frozenset(_CONSTANT)

#: Immutable types whose parts may change.
_FROZEN = (tuple, frozenset)

#: What a type is: of no interest, of interest for its parts alone, or for itself, too.
_IS_CONSTANT, _IS_FROZEN, _IS_SHAREABLE = range(3)


class _Kinds(Dict[type, int]):
    """What each type is. It is found out once for each: every commit looks at all objects."""

    def __missing__(self, of: type) -> int:
        is_constant = issubclass(of, _CONSTANT) or _is_numpys_or_torchs(of)
        kind = _IS_CONSTANT if is_constant else _IS_FROZEN if issubclass(of, _FROZEN) else _IS_SHAREABLE
        self[of] = kind
        return kind


_kinds = _Kinds()


def is_shareable(value: Any) -> bool:
    """Whether it makes a difference that two places have this object, and not one each."""
    return _kinds[type(value)] == _IS_SHAREABLE


def may_share(value: Any) -> bool:
    """Whether an object may refer to one that can change in two places, or to itself. It is looked at as the garbage collector sees
    it, which is fast, and sees more than pickle does."""
    seen: Set[int] = {id(value)}
    parts: List[Any] = [value]
    while parts:
        all_parts = _parts_of(parts.pop())
        # A list may have millions of numbers.
        if _EXACT.issuperset(map(type, all_parts)):
            continue
        children = [child for child in all_parts if _kinds[type(child)]]
        numbers = set(map(id, children))
        if len(numbers) < len(children) or not seen.isdisjoint(numbers):
            first = _first_ones(children, seen)
            if first is None:
                return True
            children = first
        seen |= numbers
        parts.extend(filter(_has_parts, children))
    return False


def _has_parts(value: Any) -> bool:
    """Whether a value may refer to one that is no constant. The garbage collector tracks no container of numbers, nor one of
    arrays, which it does not track either."""
    if gc.is_tracked(value):
        return True
    if type(value) is dict:
        return not _EXACT.issuperset(map(type, value.values()))
    return type(value) is tuple or _is_of_objects(value)


def _first_ones(children: List[Any], seen: Set[int]) -> Optional[List[Any]]:
    """The children that are met for the first time; None if one that can change is not."""
    own: Set[int] = set()
    first = []
    for child in children:
        if id(child) not in seen and id(child) not in own:
            own.add(id(child))
            first.append(child)
        elif is_shareable(child):
            return None
    return first


def _parts_of(value: Any) -> List[Any]:
    if _is_of_objects(value):
        # The garbage collector does not see what an array of objects refers to.
        return list(value.flat)
    if _torch_tensors.is_tensor(value) or _jax_arrays.is_jax_array(value):
        # Hooks and gradients are no part of what pickle writes.
        return list(getattr(value, "__dict__", {}).values())
    return gc.get_referents(value)


def _is_of_objects(value: Any) -> bool:
    numpy = sys.modules.get("numpy")
    return numpy is not None and isinstance(value, numpy.ndarray) and bool(value.dtype.hasobject)


def _is_numpys_or_torchs(of: type) -> bool:
    numpy, torch = sys.modules.get("numpy"), sys.modules.get("torch")
    if numpy is not None and issubclass(of, (numpy.generic, numpy.dtype)):
        return True
    return torch is not None and issubclass(of, (torch.dtype, torch.device, torch.layout, torch.memory_format))
