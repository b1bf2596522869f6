"""Types of the arguments and results of collectives. The modules with the collectives use them in annotations alone."""

from __future__ import annotations

from typing import TYPE_CHECKING, List, Protocol, Sequence, TypeVar, Union

if TYPE_CHECKING:
    import numpy
    from numpy.typing import NDArray
    from typing_extensions import Buffer


class SupportsArray(Protocol):
    """The common interface of NumPy arrays, torch tensors and JAX arrays."""

    @property
    def shape(self) -> Sequence[int]: ...

    @property
    def dtype(self) -> object: ...


class SupportsAutograd(SupportsArray, Protocol):
    """A torch tensor, told from other arrays by these attributes. Torch itself need not be there."""

    @property
    def requires_grad(self) -> bool: ...

    @property
    def is_leaf(self) -> bool: ...


#: A NumPy array, torch tensor or JAX array; a result has the type of the argument.
Array = TypeVar("Array", bound=SupportsArray)

#: A torch tensor.
Tensor = TypeVar("Tensor", bound=SupportsAutograd)

#: Memory that is changed in place: an array, or an object with a writable buffer.
Memory = TypeVar("Memory", bound="Union[SupportsArray, Buffer]")

#: Numbers of one type, as the rows of a gather of numbers.
Numbers = Union["NDArray[numpy.bool_]", "NDArray[numpy.int64]", "NDArray[numpy.float64]"]

#: Numbers of rows, one for each rank.
Counts = List[int]

#: Numbers of rows for the ranks: a list of numbers, or an array or tensor of integers.
Splits = Union[Sequence[int], SupportsArray]
