"""Tensors of every kind that a state may hold: another rank gets an equal tensor, flags and class included."""

import functools
import warnings

import pytest

torch = pytest.importorskip("torch")

from elastic_node import _codec  # noqa: E402

#: Types whose bytes are all that their elements have.
PLAIN = (
    ["bool", "uint8", "int8", "int16", "int32", "int64", "uint16", "uint32", "uint64"]
    + ["float16", "bfloat16", "float32", "float64", "complex32", "complex64", "complex128"]
    + ["float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz", "bits8", "bits16", "bits1x8"]
)


class Marked(torch.Tensor):
    """A class of the program's own."""


def received(value, encode=_codec.encode):
    """The value as another rank decodes it. Equal content must give equal bytes there."""
    header, buffers = encode({"it": value})[:2]
    copy = _codec.decode(header, [bytearray(buffer) for buffer in buffers])["it"]
    again, buffers_again = _codec.encode({"it": copy})
    assert again == header and [bytes(it) for it in buffers_again] == [bytes(it) for it in buffers]
    return copy


def is_same(one, other):
    return (type(one), one.dtype, one.shape, one.requires_grad) == (
        type(other),
        other.dtype,
        other.shape,
        other.requires_grad,
    )


@pytest.mark.parametrize("name", PLAIN)
@pytest.mark.parametrize("shape", [(2, 3), (), (0, 3)], ids=str)
def test_elements_of_every_type(name, shape):
    kind = getattr(torch, name)
    count = torch.Size(shape).numel()
    content = (torch.arange(count * kind.itemsize) % 2).to(torch.uint8)
    value = content.view(kind).reshape(shape)
    copy = received(value)
    assert is_same(copy, value)
    assert copy.reshape(-1).view(torch.uint8).tolist() == content.tolist()


@pytest.mark.parametrize(
    "value",
    [
        torch.arange(6.0)[2:5],
        torch.arange(6.0).reshape(2, 3).t(),
        torch.ones(1).expand(4),
        torch.arange(4.0)[::2],
        torch.arange(4.0)[::2][1:],
        torch.arange(16.0).reshape(1, 2, 2, 4).to(memory_format=torch.channels_last),
        torch.tensor([1 + 2j]).conj(),
        torch.tensor([1 + 2j]).conj().imag,
    ],
    ids=["offset", "transposed", "expanded", "strided", "one strided", "channels last", "conjugated", "negated"],
)
def test_views(value):
    copy = received(value)
    assert is_same(copy, value) and torch.equal(copy, value)


@pytest.mark.parametrize(
    "value",
    [
        torch.nn.Parameter(torch.ones(2)),
        torch.nn.Parameter(torch.ones(2), requires_grad=False),
        torch.nn.Parameter(torch.empty(0, 2)),
        torch.zeros(2, requires_grad=True),
        torch.zeros(2, requires_grad=True) * 2,
        torch.ones(2).as_subclass(Marked),
    ],
    ids=["parameter", "frozen", "empty", "gradient", "computed", "own class"],
)
def test_gradients_and_classes_are_kept(value):
    copy = received(value)
    assert is_same(copy, value) and copy.is_leaf
    assert copy.tolist() == value.tolist()
    assert isinstance(copy, torch.nn.Parameter) == isinstance(value, torch.nn.Parameter)


def test_attributes_are_kept_and_names_of_arrays_too():
    value = torch.nn.Buffer(torch.ones(2), persistent=False)
    value.origin = "mine"
    copy = received(value)
    assert isinstance(copy, torch.nn.Buffer) and (copy.persistent, copy.origin) == (False, "mine")
    parameter = torch.nn.Parameter(torch.ones(3))
    parameter.origin = "mine"
    names = _codec.begin_encoding({"buffer": value, "parameter": parameter}, is_named=True).names
    assert names == [("buffer", "float32", (2,)), ("parameter", "float32", (3,))]


def quantized():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        whole = torch.quantize_per_tensor(torch.arange(1000.0) / 8, 0.5, 3, torch.qint8)
        return {
            "qint8": torch.quantize_per_tensor(torch.tensor([1.0, -2.0, 0.5]), 0.5, 3, torch.qint8),
            "quint8": torch.quantize_per_tensor(torch.tensor([[1.0], [2.0]]), 0.25, 1, torch.quint8),
            "qint32": torch.quantize_per_tensor(torch.tensor(3.0), 0.5, 0, torch.qint32),
            "channels": torch.quantize_per_channel(
                torch.ones(2, 3), torch.tensor([0.5, 0.25]), torch.tensor([0, 1]), 0, torch.qint8
            ),
            "empty": torch.quantize_per_tensor(torch.empty(0), 0.5, 3, torch.qint8),
            "part": whole[10:13],
        }


@pytest.mark.parametrize("name", ["qint8", "quint8", "qint32", "channels", "empty", "part"])
def test_quantized_tensors(name):
    value = quantized()[name]
    copy = received(value, functools.partial(_codec.begin_encoding, is_named=True))
    assert is_same(copy, value) and copy.is_quantized and copy.qscheme() == value.qscheme()
    assert torch.equal(copy.int_repr(), value.int_repr())
    assert torch.equal(copy.dequantize(), value.dequantize())
    encoded = _codec.begin_encoding({"it": value}, is_named=True)
    assert encoded.names in ([], [None], [None] * 3), "a checkpoint has no type for it"
    assert sum(memoryview(buffer).nbytes for buffer in encoded.buffers) < 100, "no more than the part"


def test_layouts_of_their_own():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        sparse = torch.sparse_coo_tensor([[0, 2]], [1.0, 2.0], (4,)).coalesce()
        rows = torch.eye(2).to_sparse_csr()
        nested = torch.nested.nested_tensor([torch.ones(2), torch.zeros(3)])
    assert torch.equal(received(sparse).to_dense(), sparse.to_dense())
    assert torch.equal(received(rows).to_dense(), rows.to_dense())
    assert [part.tolist() for part in received(nested).unbind()] == [[1.0, 1.0], [0.0, 0.0, 0.0]]
    if torch.backends.mkldnn.is_available():
        packed = torch.arange(4.0).reshape(2, 2).to_mkldnn()
        copy = received(packed)
        assert copy.layout == packed.layout and torch.equal(copy.to_dense(), packed.to_dense())


def test_storages():
    storage = torch.arange(3, dtype=torch.int16).untyped_storage()
    assert list(received(storage)) == list(storage)
    assert len(received(torch.UntypedStorage(0))) == 0


def test_a_tensor_without_content_is_refused():
    with pytest.raises(TypeError, match="meta device has no values"):
        _codec.encode({"it": torch.ones(2, device="meta")})


class Block:
    """A commit's memory, as the native module has it."""

    def __init__(self, buffer):
        self.content = bytes(buffer)

    def copy(self):
        return bytearray(self.content)

    def copy_into(self, target):
        memoryview(target).cast("B")[:] = self.content


def test_a_tensor_that_memory_of_the_state_can_take_is_new_with_its_flag_and_class():
    value = torch.nn.Parameter(torch.arange(2.0))
    header, buffers = _codec.encode({"it": value}, frozenset({id(value)}))
    pending = _codec.decode_pending(header, [Block(buffer) for buffer in buffers])["it"]
    assert is_same(pending.new(), value) and torch.equal(pending.new(), value)
    target = torch.zeros(8)[::4][1:]
    pending = _codec.PendingTensor(Block(torch.tensor([7.0]).numpy()), "float32", (1,), False, False)
    pending.into(target)
    assert target.tolist() == [7.0]
