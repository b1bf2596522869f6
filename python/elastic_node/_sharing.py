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
from typing import Any, List, Set

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


def is_constant(value: Any) -> bool:
    """Whether a value cannot change, nor any part of it."""
    return type(value) in _EXACT or isinstance(value, _CONSTANT) or _is_numpys_or_torchs(value)


def is_shareable(value: Any) -> bool:
    """Whether it makes a difference that two places have this object, and not one each."""
    return not isinstance(value, _FROZEN) and not is_constant(value)


def may_share(value: Any) -> bool:
    """Whether an object may refer to one that can change in two places, or to itself. It is looked at as the garbage collector sees
    it, which is fast, and sees more than pickle does."""
    seen: Set[int] = {id(value)}
    parts: List[Any] = [value]
    while parts:
        children = _parts_of(parts.pop())
        # A list may have millions of numbers, and every commit looks at them.
        if _EXACT.issuperset(map(type, children)):
            continue
        for child in children:
            if type(child) in _EXACT or is_constant(child):
                continue
            if id(child) not in seen:
                seen.add(id(child))
                parts.append(child)
            elif not isinstance(child, _FROZEN):
                return True
    return False


def _parts_of(value: Any) -> List[Any]:
    numpy = sys.modules.get("numpy")
    if numpy is not None and isinstance(value, numpy.ndarray):
        # The garbage collector does not see what an array of objects refers to.
        return list(value.flat) if value.dtype.hasobject else []
    if _torch_tensors.is_tensor(value) or _jax_arrays.is_jax_array(value):
        # Hooks and gradients are no part of what pickle writes.
        return list(getattr(value, "__dict__", {}).values())
    return gc.get_referents(value)


def _is_numpys_or_torchs(value: Any) -> bool:
    numpy, torch = sys.modules.get("numpy"), sys.modules.get("torch")
    if numpy is not None and isinstance(value, (numpy.generic, numpy.dtype)):
        return True
    return torch is not None and isinstance(value, (torch.dtype, torch.device, torch.layout, torch.memory_format))
