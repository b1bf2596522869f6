"""Labels of optimisers: the beginnings of the names of their calls. Ranks that make the same optimisers in one order come to the same
labels, and optimisers whose parameters look alike to different ones. `DistributedOptimizer` gives each optimiser one."""

from __future__ import annotations

import hashlib
from collections import Counter
from typing import Dict, Iterable, List, Optional, Tuple

import torch

from .. import _agreement, _arrays, _context
from .._process_sets import ProcessSet

#: What optimisers that look alike have in common: their parameters, in words, and the ranks that average together.
_Kind = Tuple[str, Optional[Tuple[int, ...]]]

#: How many optimisers of a kind were made outside of generations: by every process alike, whenever it began.
_made_outside: Counter[_Kind] = Counter()

#: The labels of optimisers that were made or have stepped in this generation.
_taken: Dict[Tuple[_Kind, int], Label] = {}

_context.on_generation_begin(_taken.clear)


class Label:
    """The label of one optimiser: of its parameters, by these names, else by their types and shapes, and its number among those that
    look alike. The order of the parameters does not count, since ranks that differ in it are told so by calls that they make together.

    Optimisers that were made before `run` are numbered as they were made, and so are, in each generation, those that the training
    function makes. A survivor that makes them anew in each generation so comes to the numbers that a newcomer gives."""

    def __init__(
        self, parameters: Iterable[torch.Tensor], names: Optional[Dict[torch.Tensor, str]], process_set: ProcessSet
    ) -> None:
        texts = sorted(_arrays.described(parameter) if names is None else names[parameter] for parameter in parameters)
        digest = hashlib.sha256(repr(texts).encode()).hexdigest()[:8]
        self._kind: _Kind = (digest, None if process_set.ranks is None else tuple(process_set.ranks))
        self._is_made_outside = not _context.in_generation()
        self._number = _made_outside[self._kind]
        if self._is_made_outside:
            _made_outside[self._kind] += 1
            return
        while (self._kind, self._number) in _taken:
            self._number += 1
        _taken[self._kind, self._number] = self

    def __str__(self) -> str:
        return f"DistributedOptimizer.{self._kind[0]}" + (f".{self._number}" if self._number else "")

    @property
    def is_taken(self) -> bool:
        """Whether this optimiser has the label in this generation. One of an earlier generation has it from its first step on: it may
        be given up, and wait for nothing but its end."""
        return self._is_made_outside or _taken.get((self._kind, self._number)) is self

    def take(self) -> None:
        """The optimiser makes a step.

        Raises:
            RuntimeError: one that was made in this generation has its label.
        """
        if not self.is_taken and _taken.setdefault((self._kind, self._number), self) is not self:
            raise RuntimeError(
                "an optimizer that an earlier generation made, and one that this generation has made before the other one's first "
                "step, have parameters that look alike: their gradients would be mixed up. Make the DistributedOptimizers before "
                "elastic.run, or all of them in each call of the training function; or give them parameters of different names, "
                'as named_parameters=[(f"generator.{name}", it) for name, it in generator.named_parameters()]'
            )

    def items(self, parameters: Iterable[torch.Tensor]) -> List[_agreement.Item]:
        """What ranks compare, so that the optimisers that have one label on them are the same: the number, and the parameters' names
        in the state, as far as it has them."""
        names: Dict[torch.Tensor, str] = getattr(_context.state(), "_names_of_parameters", dict)()
        of_state = [(names.get(it), f"in the state, of number {place}") for place, it in enumerate(parameters)]
        return [(None, f"made as number {self._number} of the optimizers that look alike"), *of_state]
