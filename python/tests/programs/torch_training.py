"""An unmodified torch.distributed training: `torch_training.py BACKEND (ddp|fsdp) [compiled]`. Rank 0 prints loss and checksum."""

import os
import sys

import torch
import torch.distributed as dist
from torch import nn

backend, kind, *compiled = sys.argv[1:]
if backend == "elastic" and tuple(map(int, torch.__version__.split(".")[:2])) < (2, 14):
    import elastic_node.torch  # noqa: F401: these do not look for backends that are installed
device = os.environ.get("DEVICE", "cpu")
torch.set_default_device(device)
if (backend, device) == ("elastic", "cuda"):
    import elastic_node

    # Only the group of a generation has NCCL.
    elastic_node.init()
    elastic_node.barrier()

dist.init_process_group(backend)
rank, size = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
middle = nn.BatchNorm1d(64) if kind == "ddp" else nn.Identity()
layers = nn.Sequential(
    nn.Linear(16, 64), nn.ReLU(), middle, nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 4)
)
if kind == "ddp":
    model = nn.parallel.DistributedDataParallel(layers)
else:
    from torch.distributed.fsdp import fully_shard

    for layer in layers:
        if isinstance(layer, nn.Linear):
            fully_shard(layer)
    model = fully_shard(layers)
# Without a C compiler: the graphs are traced, split where DDP exchanges a bucket, and run by torch.
step = torch.compile(model, backend="aot_eager") if compiled else model

optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
random = torch.Generator(device).manual_seed(100 + rank)
for _ in range(30):
    x = torch.randn(8, 16, generator=random)
    loss = nn.functional.cross_entropy(step(x), x[:, :4].argmax(1))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()

total = loss.detach().clone()
dist.all_reduce(total)
checksum = 0.0
for parameter in model.parameters():
    whole = parameter.full_tensor() if hasattr(parameter, "full_tensor") else parameter
    checksum += float(whole.detach().double().sum())
if rank == 0:
    print(f"loss {float(total) / size!r} checksum {checksum!r}", flush=True)
dist.destroy_process_group()
if backend == "gloo":
    # Threads of torch's own gloo may abort the process while the interpreter is finalized ("terminate called without
    # an active exception", seen with stock torch 2.15 on busy machines). The compared values have been printed.
    os._exit(0)
