"""The names by which ranks know the calls of Keras' optimisers. `keras.DistributedOptimizer` gives one to each.

Keras counts the names of optimisers in each process (`sgd`, `sgd_1`), so that of an optimiser which the training function makes would be
another one on a survivor than on a newcomer.
"""

from __future__ import annotations

import collections
import re
from typing import Counter

from . import _context

#: How many optimisers of a name were made before training.
_before: Counter[str] = collections.Counter()
#: How many were made in this generation, in which every rank calls the training function anew.
_within: Counter[str] = collections.Counter()

_context.on_generation_begin(_within.clear)


def of_calls(optimizer: str) -> str:
    """The name of the calls of an optimiser that is made now: by its own name without Keras' number, and how many of that name
    were made before it."""
    kind = re.sub(r"_\d+$", "", optimizer)
    is_within = _context.in_generation()
    made = _within if is_within else _before
    made[kind] += 1
    return f"gradients of {kind} {made[kind]}{' of the generation' if is_within else ''}"
