"""Python objects as bytes: a short header, and the large arrays in it as buffers of their own, which are not copied.

It is pickle, whose content can run code when it is read. It is read only from ranks of the same job, which have
shown the job's secret, as a program already trusts them with all it computes.

Equal content gives equal bytes, so that ranks can prove to each other that they hold the same state. For that it is
written without pickle's memo, which depends on the identity of objects. Only a structure that refers to one of its parts in two places,
or to itself, is written with the memo, so that it does so on each rank; equal texts count as one object then.

Behind the pickle, which ends with a full stop, the header may say which buffers are tensors that the state's own memory can
take: readers that do not know it pass it over.
"""

from __future__ import annotations

import contextlib
import dataclasses
import io
import pickle
import struct
import sys
from types import MappingProxyType
from typing import (
    TYPE_CHECKING,
    AbstractSet,
    Any,
    Dict,
    FrozenSet,
    Iterable,
    Iterator,
    List,
    Mapping,
    NamedTuple,
    Optional,
    Sequence,
    Set,
    Tuple,
    Type,
)

from . import _holders, _jax_arrays, _jax_trees, _sharing, _torch_tensors
from ._native import CollectiveError, HostsUpdatedInterrupt
from ._sampler import EpochOrder

if TYPE_CHECKING:
    import torch

    from . import _native


class PendingTensor:
    """A tensor of a commit whose content was not copied yet."""

    def __init__(
        self, block: _native.CommitBlock, dtype: str, shape: Tuple[int, ...], requires_grad: bool, is_parameter: bool
    ) -> None:
        self.block, self.dtype, self.shape = block, dtype, shape
        self.requires_grad, self.is_parameter = requires_grad, is_parameter

    def into(self, target: torch.Tensor) -> None:
        """Copies the content into a tensor of this type and shape: contiguous, and in main memory."""
        self.block.copy_into(_torch_tensors.bytes_in(target.detach()).numpy())

    def new(self) -> torch.Tensor:
        """The tensor, in memory of its own."""
        tensor: torch.Tensor = _tensor_of(
            self.block.copy(), self.dtype, self.shape, self.requires_grad, self.is_parameter
        )
        return tensor


class _Pending:
    """A buffer whose tensor is a `PendingTensor`."""

    def __init__(self, block: _native.CommitBlock) -> None:
        self.block = block


def _tensor_of(
    data: Any, dtype: str, shape: Tuple[int, ...], requires_grad: bool = False, is_parameter: bool = False
) -> Any:
    if isinstance(data, _Pending):
        return PendingTensor(data.block, dtype, shape, requires_grad, is_parameter)
    import torch

    kind = getattr(torch, dtype)
    if 0 in shape:
        tensor = torch.empty(shape, dtype=kind, device="cpu")
    else:
        tensor = torch.frombuffer(data, dtype=kind).reshape(shape)
    return _torch_tensors.as_it_was(tensor, requires_grad, is_parameter)


#: Name, type and shape of an array, as a checkpoint has them.
Name = Tuple[str, str, Tuple[int, ...]]
#: Names and arrays, by the identity of the arrays' objects, which stay alive so that no other object gets one's identity.
Names = Dict[int, Tuple[str, Any]]


class _Pickler(pickle.Pickler):
    #: The name of each array, by the identity of its object.
    names: Names = {}
    #: The name of the array whose buffer comes next.
    next: Optional[Name] = None
    #: The tensors that memory of the state can take, by the identity of their objects.
    in_place: AbstractSet[int] = frozenset()
    #: Whether the buffer of such a tensor comes next.
    is_in_place = False
    #: The tensors of which a copy would be another one than the program trains: their names, by the identity of their objects.
    trained: Mapping[int, str] = MappingProxyType({})
    #: The names of those that were found.
    found: List[str] = []
    #: The copies of tensors on GPUs.
    copies: _torch_tensors.DeviceCopies
    #: Whether the buffer of such a tensor comes next.
    is_late = False

    def reducer_override(self, value: Any) -> Any:
        if self.names:
            self._note(value)
        if _jax_arrays.is_jax_array(value):
            flat = _jax_arrays.bytes_of(value)
            buffer = pickle.PickleBuffer(flat) if flat.size else b""
            return _jax_arrays.jax_array_of, (buffer, str(value.dtype), tuple(value.shape), bool(value.weak_type))
        if _torch_tensors.is_storage(value):
            return self._reduced_storage(value)
        if _torch_tensors.is_optimizer(value):
            raise TypeError(
                f"an optimiser ({type(value).__name__}) within another object: each copy of it would step parameters of its own. Give "
                "the state the optimiser as an attribute, or in a list, a tuple or a dictionary"
            )
        if isinstance(value, EpochOrder):
            raise TypeError(
                f"a sampler ({type(value).__name__}) within another object: a rank that takes the state over would get a copy of that "
                "object, and its loader would go on with the sampler that it has. Give the state the sampler as an attribute, or in a "
                "list, a tuple or a dictionary, and make what has it (a BatchSampler, a DataLoader) outside of the state"
            )
        if _torch_tensors.is_sharded(value):
            raise TypeError(
                "a DTensor holds this rank's shard only, and every rank that takes the state over would get the shard of another one. Give "
                "the state full tensors (full_tensor(), or torch.distributed.checkpoint's full state dict), or save shards with "
                "torch.distributed.checkpoint"
            )
        if not _torch_tensors.is_tensor(value):
            return NotImplemented
        if id(value) in self.trained:
            self.found.append(self.trained[id(value)])
        if not _torch_tensors.is_plain(value):
            return self._reduced_tensor(value)
        words = (_name_of(value.dtype), tuple(value.shape), *_torch_tensors.marks_of(value))
        if not value.numel():
            return _tensor_of, (b"", *words)
        self.is_in_place = id(value) in self.in_place
        self.is_late = self.copies.takes(value)
        # The array that stands for one on a GPU is replaced before it is read.
        flat = bytearray(1) if self.is_late else _torch_tensors.content_of(value)
        return _tensor_of, (pickle.PickleBuffer(flat), *words)

    def _reduced_tensor(self, value: Any) -> Any:
        # Its buffers are parts of it, and not the array that the name is for.
        self.next = None
        if _torch_tensors.has_attributes(value):
            bare = _torch_tensors.without_attributes(value)
            if id(value) in self.names:
                self.names[id(bare)] = self.names[id(value)][0], bare
            return _torch_tensors.with_attributes, (bare, dict(value.__dict__))
        reduced = _torch_tensors.reduced(value)
        return NotImplemented if reduced is None else reduced

    def _reduced_storage(self, value: Any) -> Any:
        data = _torch_tensors.bytes_of(value)
        dtype = _name_of(value.dtype) if hasattr(value, "dtype") else None
        return _torch_tensors.storage_of, (pickle.PickleBuffer(data) if data.size else b"", dtype)

    def _note(self, value: Any) -> None:
        """Notes the name of an array. Its buffer is the next one, unless pickle takes no buffer of it."""
        if not _is_array(value):
            return
        name, _ = self.names.get(id(value), (None, None))
        is_plain = not hasattr(value, "flags") or value.flags.c_contiguous
        dtype = _name_of(value.dtype)
        self.next = (name, dtype, tuple(value.shape)) if name is not None and is_plain else None


class _MemoPickler(_Pickler):
    """Writes an object that has a part in two places, with pickle's memo."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._texts: Dict[str, str] = {}
        self._seen: Set[int] = set()
        #: Whether a part that can change was met in a second place. The memo keeps all parts alive, so that no other part gets
        #: one's identity.
        self.shares = False

    def persistent_id(self, value: Any) -> Any:
        """Is called for each object. Of equal texts, those that are one object differ from rank to rank: all count as one."""
        if type(value) is str:
            return self._texts.setdefault(value, value)
        if not self.shares and _sharing.is_shareable(value):
            self.shares = id(value) in self._seen
            self._seen.add(id(value))
        return None


class _ArrayFinder(_MemoPickler):
    """Notes the arrays in an object, in the place of their content."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.arrays: List[Any] = []

    def reducer_override(self, value: Any) -> Any:
        if isinstance(value, _holders.HeldContent) or _jax_arrays.is_jax_array(value):
            return tuple, ()
        if not _is_array(value):
            return super().reducer_override(value)
        self.arrays.append(value)
        if _torch_tensors.is_tensor(value):
            return (tuple, ()) if _torch_tensors.is_plain(value) else super().reducer_override(value)
        return NotImplemented if value.dtype.hasobject else (tuple, ())


class _Unpickler(pickle.Unpickler):
    def persistent_load(self, text: Any) -> Any:
        return text


def _name_of(dtype: Any) -> str:
    return str(dtype).rpartition(".")[2]


def _is_array(value: Any) -> bool:
    numpy = sys.modules.get("numpy")
    return (
        _torch_tensors.is_tensor(value)
        or (numpy is not None and isinstance(value, numpy.ndarray))
        or _jax_arrays.is_jax_array(value)
    )


def _names_in(value: Any, path: str, names: Names, depth: int) -> None:
    """Finds the arrays in dictionaries, lists, tuples, dataclasses and the nodes of JAX's trees; the keys and attributes that lead
    to one are its name."""
    if _is_array(value):
        names.setdefault(id(value), (path or "state", value))
        return
    if isinstance(value, _holders.HeldContent):
        _names_in(value.content, path, names, depth)
    elif isinstance(value, _jax_trees.TreeLeaves):
        for name, leaf in zip(value.names, value.leaves):
            _names_in(leaf, f"{path}.{name}", names, depth + 1)
    elif depth < _DEPTH_MAX and not isinstance(value, _holders.LEAVES):
        for key, item in _parts_of(value):
            _names_in(item, f"{path}.{key}" if path else str(key), names, depth + 1)


def _parts_of(value: Any) -> Iterable[Tuple[Any, Any]]:
    if isinstance(value, dict):
        return value.items()
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return zip(value._fields, value)
    if isinstance(value, (list, tuple)):
        return enumerate(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = (field.name for field in dataclasses.fields(value))
        return [(name, getattr(value, name)) for name in fields if hasattr(value, name)]
    return _jax_arrays.children_of(value)


#: Longest way to an array that has a name.
_DEPTH_MAX = 32


class Encoded(NamedTuple):
    """An object as bytes."""

    header: bytes
    #: The arrays; they share memory with those in the object, or with what a GPU is copied to.
    buffers: List[Any]
    #: The name of each array that has one; nothing where names are not wanted.
    names: List[Optional[Name]]
    #: The numbers of the arrays that are still being copied, and their copies.
    late: List[int]
    copies: Optional[_torch_tensors.DeviceCopies]
    #: Whether a part was met in a second place.
    shares: bool = False


def check_copyable(name: str, value: Any, trained: Mapping[int, str]) -> None:
    """Looks for parameters in a part of a state of which each rank would get a copy.

    Args:
        name: of the part.
        value: what pickle takes.
        trained: parameters, with their names, by the identity of their objects.

    Raises:
        TypeError: the value has one of them.
    """
    found: List[str] = []
    try:
        _encode(value, _MemoPickler, {}, trained=trained, found=found)
    except Exception:
        # Each commit says what else is wrong with it.
        pass
    if found:
        raise TypeError(
            f"{name!r} in the state has a parameter in it ({found[0]}), of which each rank that takes the state over would get a copy that "
            "nothing trains. Give the state modules, and parameters, as attributes (several parameters as a torch.nn.ParameterList); "
            "give an object that knows them state_dict and load_state_dict, for what it has beside them"
        )


def arrays_in(value: Any) -> List[Any]:
    """The arrays of numpy and torch that pickle meets in a value, each object once, without what is in a `HeldContent`."""
    finder = _ArrayFinder(io.BytesIO(), protocol=5, buffer_callback=lambda buffer: None)
    finder.copies = _torch_tensors.DeviceCopies()
    finder.dump(value)
    return finder.arrays


def names_of_arrays(value: Any, path: str) -> Names:
    """The names of the arrays in dictionaries, lists, tuples and dataclasses, by the identity of the arrays' objects."""
    names: Names = {}
    _names_in(value, path, names, 0)
    return names


def encode(value: Any, in_place: AbstractSet[int] = frozenset()) -> Tuple[bytes, List[Any]]:
    """The header, and the arrays in `value`, all of which have their bytes. Arguments as of `begin_encoding`."""
    encoded = begin_encoding(value, in_place)
    if encoded.copies is not None:
        encoded.copies.wait()
    return encoded.header, encoded.buffers


def begin_encoding(value: Any, in_place: AbstractSet[int] = frozenset(), is_named: bool = False) -> Encoded:
    """The header and the arrays in `value`. Tensors on GPUs are still being copied: the program may change them, but the arrays
    have their bytes only after `Encoded.copies.wait`.

    Args:
        value: what pickle takes.
        in_place: the tensors in it that memory of the state can take, by the identity of their objects.
        is_named: whether the names of arrays are wanted.
    """
    names: Names = {}
    if is_named:
        _names_in(value, "", names, 0)
    # A tensor in memory of the state's own may be another part's, too: it is given memory anew.
    encoded = _encode(value, _MemoPickler, names) if _sharing.may_share(value) else None
    if encoded is None or not encoded.shares:
        try:
            encoded = _encode(value, _Pickler, names, in_place)
        except (RecursionError, ValueError):
            encoded = _encode(value, _MemoPickler, names)
    return encoded if is_named else encoded._replace(names=[])


@contextlib.contextmanager
def blaming(content: Any) -> Iterator[None]:
    """Names the part of a state that cannot be encoded.

    Raises:
        Exception: what was raised for it, of the same type, with the part's name; `pickle.PicklingError` in the place of a type
            that nobody knows how to make.
    """
    try:
        yield
    except (CollectiveError, HostsUpdatedInterrupt, MemoryError):
        # The encoded content is not at fault.
        raise
    except Exception as error:
        name = next((name for name, part in _parts_of(content) if not is_encodable(part)), None)
        what = "the state" if name is None else f"{name!r} in the state"
        if type(error) in _PLAIN_ERRORS:
            raise type(error)(f"{what} cannot be saved: {error}") from error
        raise pickle.PicklingError(f"{what} cannot be saved: {type(error).__name__}: {error}") from error


#: Exceptions of pickle and torch, which are made of a text.
_PLAIN_ERRORS = (
    AttributeError,
    NotImplementedError,
    RecursionError,
    RuntimeError,
    TypeError,
    ValueError,
    pickle.PicklingError,
)


def is_encodable(value: Any) -> bool:
    try:
        encode(value)
    except Exception:
        return False
    return True


def _encode(
    value: Any,
    kind: Type[_Pickler],
    names: Names,
    in_place: AbstractSet[int] = frozenset(),
    trained: Mapping[int, str] = MappingProxyType({}),
    found: Optional[List[str]] = None,
) -> Encoded:
    file = io.BytesIO()
    buffers: List[Any] = []
    noted: List[Optional[Name]] = []
    marked: List[int] = []
    late: List[int] = []

    def take(buffer: Any) -> None:
        if pickler.is_in_place:
            marked.append(len(buffers))
        if pickler.is_late:
            late.append(len(buffers))
        pickler.is_in_place = pickler.is_late = False
        buffers.append(buffer.raw())
        noted.append(pickler.next)
        pickler.next = None

    pickler = kind(file, protocol=5, buffer_callback=take)
    # Without a memo.
    pickler.fast = kind is _Pickler
    pickler.names = names
    pickler.in_place = in_place
    pickler.trained, pickler.found = trained, [] if found is None else found
    pickler.copies = copies = _torch_tensors.DeviceCopies()
    pickler.dump(value)
    shares = isinstance(pickler, _MemoPickler) and pickler.shares
    for number, array in zip(late, copies.begin()):
        buffers[number] = array
    if marked:
        file.write(struct.pack(f"<{len(marked) + 1}I", *marked, len(marked)) + _MARK)
    return Encoded(file.getvalue(), buffers, noted, late, copies if late else None, shares)


#: The end of a header that says which buffers can be copied in place: their numbers and how many they are come before it.
_MARK = b"in place"


def marked_in_place(header: bytes) -> FrozenSet[int]:
    """The numbers of the buffers whose tensors memory of the state can take."""
    if not header.endswith(_MARK):
        return frozenset()
    end = len(header) - len(_MARK) - 4
    (count,) = struct.unpack_from("<I", header, end)
    return frozenset(struct.unpack_from(f"<{count}I", header, end - 4 * count))


def decode_pending(header: bytes, blocks: Sequence[_native.CommitBlock]) -> Any:
    """The value of a commit, with a `PendingTensor` for each tensor that was encoded as `in_place`. All else has memory of its
    own."""
    marked = marked_in_place(header)
    buffers = (_Pending(block) if number in marked else block.copy() for number, block in enumerate(blocks))
    return decode(header, buffers)


def decode(header: bytes, buffers: Iterable[Any]) -> Any:
    """The value. Arrays in it share memory with the buffers."""
    return _Unpickler(io.BytesIO(header), buffers=buffers).load()


def dumps(value: Any) -> bytes:
    return pickle.dumps(value, protocol=5)


loads = pickle.loads
