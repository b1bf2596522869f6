"""Reductions of every type of elements, and tensors of every layout: the elastic backend gives what gloo gives, where gloo
gives anything. An argument names the case, on every rank."""

import sys
from datetime import timedelta

import torch
import torch.distributed as dist

import elastic_node.torch  # noqa: F401: makes the backend known before torch 2.14

dist.init_process_group("gloo", timeout=timedelta(seconds=60))
elastic = dist.new_group(backend="elastic")
rank, size = dist.get_rank(), dist.get_world_size()

KINDS = ["int8", "uint8", "int32", "int64", "bool", "float16", "bfloat16", "float32", "float64", "complex64", "complex128"]
#: Types of another width than gloo's, or without a reduction there.
OF_OURS_ALONE = ["complex32"]
#: Whether gloo of this torch has fewer reductions than today's.
IS_OLD = tuple(map(int, torch.__version__.split(".")[:2])) < (2, 14)
INTEGERS = ["int8", "uint8", "int32", "int64", "bool"]


def numbers(kind, shape=(6,)):
    """Numbers of this rank; bytes wrap, with and without a sign."""
    values = (torch.arange(torch.Size(shape).numel()) * 37 + rank * 91 - 60).reshape(shape)
    if kind == "bool":
        return values % 3 == 0
    if kind.startswith("complex"):
        return (values % 7).to(getattr(torch, kind)) * (1 + 2j)
    return (values if "int" in kind else values % 7).to(getattr(torch, kind))


def all_reduced(values, op, group):
    dist.all_reduce(values, op, group=group)
    return values


def reduced(values, op, group):
    dist.reduce(values, 1, op, group=group)
    return values if rank == 1 else None


def scattered(values, op, group):
    own = values.new_empty(2)
    dist.reduce_scatter_tensor(own, torch.cat([values] * size)[: 2 * size].contiguous(), op, group=group)
    return own


def scattered_list(values, op, group):
    own = torch.empty_like(values)
    dist.reduce_scatter(own, [values.roll(other) for other in range(size)], op, group=group)
    return own


def check(what, of_gloo, of_ours):
    assert (of_gloo is None) == (of_ours is None), what
    if of_gloo is not None:
        assert of_gloo.dtype == of_ours.dtype, what
        assert of_gloo.tolist() == of_ours.tolist(), (what, of_gloo, of_ours)


def elements():
    for reduction in (all_reduced, reduced, scattered, scattered_list):
        for kind in KINDS:
            names = ["SUM"] if kind.startswith("complex") else ["SUM", "PRODUCT", "MIN", "MAX"]
            for name in names + (["BAND", "BOR", "BXOR"] if kind in INTEGERS else []):
                op = getattr(dist.ReduceOp, name)
                of_ours = reduction(numbers(kind), op, elastic)
                try:
                    of_gloo = reduction(numbers(kind), op, None)
                except RuntimeError:
                    assert IS_OLD, (reduction.__name__, kind, name)
                else:
                    check((reduction.__name__, kind, name), of_gloo, of_ours)
        for kind in OF_OURS_ALONE:
            given = numbers(kind)
            total = all_reduced(given.clone(), dist.ReduceOp.SUM, elastic)
            check(kind, all_reduced(given.to(torch.complex64), dist.ReduceOp.SUM, None), total.to(torch.complex64))


def layouts():
    """Memory with gaps, of no element and of several tensors; a byte with a sign is reduced in the tensor's own memory."""
    for name in ("SUM", "MIN", "BXOR"):
        op = getattr(dist.ReduceOp, name)
        for of_one in (lambda it: it.reshape(2, 3).t(), lambda it: it[::2], lambda it: it[1:2], lambda it: it[:0]):
            # Gloo also reduces the bytes between the elements of a tensor with gaps.
            of_gloo = all_reduced(of_one(numbers("int8")).contiguous(), op, None)
            check(name, of_gloo, all_reduced(of_one(numbers("int8")), op, elastic))
    whole = numbers("int64")
    at = whole.data_ptr()
    all_reduced(whole, dist.ReduceOp.BAND, elastic)
    check("in place", all_reduced(numbers("int64"), dist.ReduceOp.BAND, None), whole)
    assert whole.data_ptr() == at


def refused():
    for kind, name in (("float32", "BAND"), ("int16", "SUM"), ("int32", "AVG"), ("bool", "AVG"), ("complex64", "BOR")):
        given = numbers(kind)
        try:
            # Torch refuses some for complex numbers before the backend is asked.
            elastic._get_backend(given.device).reduce([given], options(name))
        except ValueError as error:
            assert f"no {name} of torch.{kind}" in str(error), error
        else:
            raise AssertionError((kind, name))
    try:
        dist.all_reduce(torch.ones(1), dist._make_nccl_premul_sum(2.0), group=elastic)
    except ValueError as error:
        assert "no reduction PREMUL_SUM: take SUM" in str(error), error
    else:
        raise AssertionError("PREMUL_SUM was taken")


def options(name):
    made = dist.ReduceOptions()
    made.reduceOp, made.rootRank = getattr(dist.ReduceOp, name), 0
    return made


def images(number):
    """An image whose channels lie together."""
    return (torch.arange(16.0).reshape(1, 2, 2, 4) + number).to(memory_format=torch.channels_last)


def channels_last():
    many = range(size)
    own = images(-1.0)
    dist.scatter(own, [images(other) for other in many] if rank == 0 else None, 0, group=elastic)
    assert own.equal(images(rank)) and own.is_contiguous(memory_format=torch.channels_last)
    dist.reduce_scatter(own, [images(other) for other in many], group=elastic)
    assert own.equal(images(rank) * size)
    parts = [images(-1.0) for _ in many]
    dist.all_gather(parts, images(rank), group=elastic)
    assert all(part.equal(images(other)) for other, part in zip(many, parts))
    parts = [images(-1.0) for _ in many] if rank == 0 else None
    dist.gather(images(rank), parts, 0, group=elastic)
    assert parts is None or all(part.equal(images(other)) for other, part in zip(many, parts))
    own = images(rank)
    dist.broadcast(own, 1, group=elastic)
    assert own.equal(images(1))
    parts = [images(-1.0) for _ in many]
    dist.all_to_all(parts, [images(10 * rank + other) for other in many], group=elastic)
    assert all(part.equal(images(10 * other + rank)) for other, part in zip(many, parts))
    negated = (torch.tensor([1 + 2j, 3 + 4j]) * (rank + 1)).conj().imag
    dist.broadcast(negated, 1, group=elastic)
    assert negated.is_neg() and negated.tolist() == [-4.0, -8.0]


def unsendable():
    """A tensor that cannot be sent is refused at the send, and the messages after it arrive."""
    strange = {
        "meta": torch.zeros(3, device="meta"),
        "torch.sparse_coo": torch.eye(2).to_sparse(),
        "nested": torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]),
        "quantized": torch.quantize_per_tensor(torch.ones(3), 0.5, 0, torch.qint8),
    }
    if torch.backends.mkldnn.is_available():
        strange["torch._mkldnn"] = torch.ones(2, 2).to_mkldnn()
    for named, tensor in strange.items():
        for call in (dist.send, dist.recv):
            try:
                call(tensor, (rank + 1) % size, group=elastic)
            except ValueError as error:
                assert f"takes dense tensors, not one that is {named}" in str(error), error
            else:
                raise AssertionError(named)
    for given in (torch.arange(3.0), torch.arange(4.0)[::2][1:], torch.tensor([1 + 2j]).conj().imag, torch.ones(0)):
        if rank == 0:
            dist.send(given, 1, group=elastic)
        elif rank == 1:
            got = torch.zeros_like(given)
            dist.recv(got, 0, group=elastic)
            assert got.tolist() == given.tolist()


for case in sys.argv[1:]:
    globals()[case]()
dist.barrier(group=elastic)
dist.destroy_process_group()
print("well")
