"""Features of `torch.distributed` beyond collectives of dense tensors: an argument names the case, on every rank."""

import gc
import os
import sys
import weakref
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

import elastic_node.torch  # noqa: F401: makes the backend known before torch 2.14


def batched():
    rank, size = dist.get_rank(), dist.get_world_size()
    for elements in (4, 1 << 20):
        sent = torch.full((elements,), float(rank))
        got = [torch.empty(elements) for _ in range(size)]
        operations = []
        for other in range(size):
            if other != rank:
                operations.append(dist.P2POp(dist.isend, sent, other))
                operations.append(dist.P2POp(dist.irecv, got[other], other))
        for work in dist.batch_isend_irecv(operations):
            work.wait()
        for other in range(size):
            assert other == rank or got[other].unique().tolist() == [other]


def ring():
    """Large messages all around at once, sent before any is received; and small ones by tags, last first."""
    rank, size = dist.get_rank(), dist.get_world_size()
    sent = torch.full((1 << 20,), float(rank))
    got = torch.empty(1 << 20)
    out = dist.isend(sent, (rank + 1) % size)
    dist.recv(got, (rank - 1) % size)
    out.wait()
    assert got.unique().tolist() == [(rank - 1) % size]
    tags = [3, 1, 2]
    works = [dist.isend(torch.tensor([tag, rank]), (rank + 1) % size, tag=tag) for tag in tags]
    for tag in sorted(tags):
        pair = torch.empty(2, dtype=torch.int64)
        dist.recv(pair, (rank - 1) % size, tag=tag)
        assert pair.tolist() == [tag, (rank - 1) % size]
    for work in works:
        work.wait()


def any_source():
    rank, size = dist.get_rank(), dist.get_world_size()
    if rank == 0:
        numbers = torch.empty(2)
        sources = []
        for _ in range(2 * (size - 1)):
            sources.append(dist.recv(numbers))
            assert numbers.tolist() == [sources[-1]] * 2
        assert sorted(sources) == sorted(2 * list(range(1, size))), sources
    else:
        for _ in range(2):
            dist.send(torch.full((2,), float(rank)), 0)
    # A message of another size than the tensor is refused, and the next one is not affected.
    if rank == 0:
        dist.send(torch.ones(3), 1)
        dist.send(torch.ones(2), 1)
    elif rank == 1:
        numbers = torch.zeros(2)
        try:
            dist.recv(numbers, 0)
        except ValueError as error:
            assert "12 bytes" in str(error), error
        else:
            raise AssertionError("a message of another size was taken")
        dist.recv(numbers, 0)
        assert numbers.tolist() == [1, 1]


def monitored():
    rank, size = dist.get_rank(), dist.get_world_size()
    dist.monitored_barrier()
    if rank == size - 1:
        return
    try:
        dist.monitored_barrier(timeout=timedelta(seconds=1))
    except RuntimeError as error:
        assert f"Rank {size - 1} failed" in str(error) or rank != 0, error
    else:
        raise AssertionError("a barrier without one rank was passed")


def profiled():
    with torch.profiler.profile(record_shapes=True) as profile:
        dist.all_reduce(torch.ones(3, 2))
    (event,) = [event for event in profile.events() if event.name == "elastic:all_reduce"]
    assert event.is_async and event.input_shapes == [[3, 2]], event


def checkpointed():
    """DCP's `async_save`, which asks for a backend for CPU tensors."""
    from torch.distributed import checkpoint

    folder = os.path.join(os.environ["CONTROL"], "checkpoint")
    content = {"weights": torch.full((4,), 7.0), "step": torch.tensor(3)}
    checkpoint.async_save(content, checkpoint_id=folder).result()
    loaded = {"weights": torch.zeros(4), "step": torch.tensor(0)}
    checkpoint.load(loaded, checkpoint_id=folder)
    assert loaded["weights"].tolist() == [7.0] * 4 and loaded["step"] == 3


def pipelined():
    """Two stages with 1F1B, whose sends and receives cross."""
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B

    rank, size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(rank)
    layer = torch.nn.Linear(64, 64)
    stage = PipelineStage(layer, rank, size, torch.device("cpu"))
    schedule = Schedule1F1B(stage, n_microbatches=8, loss_fn=torch.nn.functional.mse_loss)
    batch, target = torch.randn(64, 64), torch.zeros(64, 64)
    losses = []
    if rank == 0:
        schedule.step(batch)
    elif rank == size - 1:
        schedule.step(target=target, losses=losses)
        assert len(losses) == 8
    else:
        schedule.step()
    assert layer.weight.grad is not None and layer.weight.grad.abs().sum() > 0


def sparse():
    rank, size = dist.get_rank(), dist.get_world_size()
    indices = torch.tensor([[0, rank + 1]])
    tensor = torch.sparse_coo_tensor(indices, torch.tensor([[1.0, 1.0], [2.0, 2.0]]), (size + 1, 2))
    dist.all_reduce(tensor)
    due = torch.tensor([[float(size)] * 2] + [[2.0, 2.0]] * size)
    assert torch.equal(tensor.to_dense(), due), tensor.to_dense()


def callbacks():
    """A callback that calls a collective, and waits for it, on the way of a future."""
    size = dist.get_world_size()

    def again(future):
        (first,) = future.value()
        return dist.all_reduce(first, async_op=True).get_future().wait()[0]

    # All are launched before the first callback is: collectives must come in the same order on all ranks.
    works = [dist.all_reduce(torch.ones(2), async_op=True) for _ in range(3)]
    futures = [work.get_future().then(again) for work in works]
    del works
    assert [future.wait().tolist() for future in futures] == [[size**2] * 2] * 3


def power_sgd():
    torch.manual_seed(0)
    model = DistributedDataParallel(torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.Linear(64, 8)))
    state = powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=1, start_powerSGD_iter=2)
    model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(4):
        optimizer.zero_grad()
        model(torch.randn(4, 32)).square().mean().backward()
        optimizer.step()


def uneven():
    """DDP.join: ranks with other numbers of batches."""
    torch.manual_seed(0)
    model = DistributedDataParallel(torch.nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with model.join():
        for _ in range(2 + dist.get_rank()):
            optimizer.zero_grad()
            model(torch.ones(3, 4)).sum().backward()
            optimizer.step()
    weights = [torch.empty_like(model.module.weight) for _ in range(dist.get_world_size())]
    dist.all_gather(weights, model.module.weight.detach())
    assert all(torch.equal(weight, weights[0]) for weight in weights)


def forked():
    child = os.fork()
    if child == 0:
        try:
            dist.all_reduce(torch.ones(1))
        except RuntimeError as error:
            os._exit(0 if "forked" in str(error) else 2)
        os._exit(1)
    _pid, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    if os.fork() == 0:
        # It ends as a program does, with all that it has inherited.
        sys.exit(0)
    os.wait()
    tensor = torch.ones(1)
    dist.all_reduce(tensor)
    assert tensor.item() == dist.get_world_size()


def kept():
    """A receive that nobody's Python holds is still there after more operations than are kept."""
    rank = dist.get_rank()
    received = torch.zeros(1)
    if rank == 1:
        waiting = weakref.ref(dist.irecv(received, 0))
        gc.collect()
    total = torch.zeros(1)
    for _ in range(4200):
        dist.all_reduce(total)
    if rank == 0:
        dist.send(torch.ones(1), 1)
    if rank == 1:
        gc.collect()
        work = waiting()
        assert work is not None, "it was freed"
        work.wait()
        assert received.item() == 1


def split():
    """Parts of the world, and of a part, by torch's `split_group`; a new group where torch would split NCCL's."""
    rank, size = dist.get_rank(), dist.get_world_size()
    evens, odds = list(range(0, size, 2)), list(range(1, size, 2))[::-1]
    own = evens if rank in evens else odds
    part = dist.split_group(split_ranks=[evens, odds])
    assert dist.get_process_group_ranks(part) == own and part.rank() == own.index(rank)
    total = torch.tensor([float(rank)])
    dist.all_reduce(total, group=part)
    assert total.item() == sum(own)
    if rank in evens:
        first = dist.split_group(part, [[0]])
        assert (first is dist.GroupMember.NON_GROUP_MEMBER) == (rank != 0)
        if len(evens) > 1 and rank in evens[:2]:
            sent = torch.tensor([rank])
            if rank == evens[0]:
                dist.send(sent, evens[1], group=part)
            else:
                dist.recv(sent, evens[0], group=part)
                assert sent.item() == evens[0]
    dist.group.WORLD.bound_device_id = torch.device("cpu", 0)
    fresh = dist.new_group(evens)
    dist.group.WORLD.bound_device_id = None
    if rank in evens:
        dist.all_reduce(total, group=fresh)
        assert total.item() == sum(evens) * len(evens)


dist.init_process_group("elastic", timeout=timedelta(seconds=60))
for case in sys.argv[1:]:
    globals()[case]()
dist.barrier()
dist.destroy_process_group()
print("well")
