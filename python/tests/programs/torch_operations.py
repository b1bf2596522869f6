"""Every operation that torch.distributed can ask of a backend, compared with its required result. torch before 2.14
needs the import."""

import os
import time

import torch
import torch.distributed as dist

import elastic_node.torch as en

device = os.environ.get("DEVICE", "cpu")
torch.set_default_device(device)
if device == "cuda":
    # Only the group of a generation has NCCL.
    en.init()
    en.barrier()
dist.init_process_group("elastic")
rank, size = dist.get_rank(), dist.get_world_size()

for kind in (torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int64, torch.uint8):
    numbers = torch.ones(5, dtype=kind)
    dist.all_reduce(numbers)
    assert numbers.tolist() == [size] * 5
columns = torch.arange(6.0).reshape(2, 3).T  # Not contiguous.
dist.all_reduce(columns, op=dist.ReduceOp.AVG)
assert columns.tolist() == torch.arange(6.0).reshape(2, 3).T.tolist()
flags = torch.tensor([rank == 0, True, False])
dist.all_reduce(flags, op=dist.ReduceOp.MAX)
assert flags.tolist() == [True, True, False]

parts = [torch.zeros(3) for _ in range(size)]
dist.all_gather(parts, torch.full((3,), float(rank)))
assert [part[0].item() for part in parts] == list(range(size))
whole = torch.zeros(2 * size)
dist.all_gather_into_tensor(whole, torch.full((2,), float(rank)))
assert whole.tolist() == [float(other) for other in range(size) for _ in range(2)]
own = torch.zeros(2)
dist.reduce_scatter_tensor(own, torch.arange(2.0 * size))
assert own.tolist() == [2.0 * rank * size, (2.0 * rank + 1) * size]
dealt = torch.zeros(size)
dist.all_to_all_single(dealt, torch.arange(float(size)) + 10 * rank)
assert dealt.tolist() == [10.0 * other + rank for other in range(size)]
uneven = torch.zeros(size * (rank + 1))
splits = [other + 1 for other in range(size)]
dist.all_to_all_single(uneven, torch.ones(sum(splits)), [rank + 1] * size, splits)
assert uneven.sum().item() == len(uneven)

sent = torch.full((2,), float(rank))
dist.broadcast(sent, 1)
assert sent.tolist() == [1.0, 1.0]
total = torch.ones(2)
dist.reduce(total, 0)
assert rank != 0 or total.tolist() == [size, size]
lists = [torch.zeros(1) for _ in range(size)] if rank == 0 else None
dist.gather(torch.tensor([float(rank)]), lists, 0)
assert rank != 0 or [part.item() for part in lists] == list(range(size))
given = torch.zeros(1)
dist.scatter(given, [torch.tensor([float(other)]) for other in range(size)] if rank == 0 else None, 0)
assert given.item() == rank
objects = [None] * size
dist.all_gather_object(objects, {"rank": rank})
assert objects == [{"rank": other} for other in range(size)]

if rank == 0:
    dist.send(torch.arange(3.0), 1)
elif rank == 1:
    numbers = torch.zeros(3)
    dist.recv(numbers, 0)
    assert numbers.tolist() == [0.0, 1.0, 2.0]
pair = dist.new_group([0, size - 1])
if rank in (0, size - 1):
    one = torch.ones(1, device="cpu")
    dist.all_reduce(one, group=pair)
    assert one.item() == 2
    # Tensors of a GPU need the group of all ranks.
    if device == "cuda":
        try:
            dist.all_reduce(torch.ones(1), group=pair)
        except BufferError as error:
            assert "copy it with .cpu()" in str(error)
        else:
            raise AssertionError("a group of the CPU took a tensor on the GPU")
work = dist.all_reduce(torch.ones(1 << 20), async_op=True)
work.wait()
# On a GPU, only the stream waits.
deadline = time.monotonic() + 60
while not work.is_completed():
    assert device == "cuda" and time.monotonic() < deadline
try:
    dist.all_reduce(torch.ones(1), op=dist.ReduceOp.BAND)
except ValueError as error:
    assert "no BAND of torch.float32" in str(error)
else:
    raise AssertionError("a reduction that is not there was taken")
dist.barrier()
dist.destroy_process_group()
print("well")
