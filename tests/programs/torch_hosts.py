"""Unmodified torch over several hosts: DDP, FSDP2 and a sub-group of the first and the last rank. Arguments: the backend,
ddp or fsdp, a folder for results, a folder with control files. A rank whose control file `kill.RANK.RESTARTS` is there
kills itself on the way. With backend "elastic" it needs `elastic_node` to be found, and does not import it itself."""

import json
import os
import sys

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

backend, kind, results, control = sys.argv[1:5]
if backend == "elastic":
    # torch before 2.14 does not find it by itself.
    import elastic_node.torch  # noqa: F401
dist.init_process_group(backend)
rank, world_size = dist.get_rank(), dist.get_world_size()
restarts = int(os.environ["TORCHELASTIC_RESTART_COUNT"])

ends = dist.new_group([0, world_size - 1])
outermost = torch.tensor([rank + 1.0])
if rank in (0, world_size - 1):
    dist.all_reduce(outermost, group=ends)

torch.manual_seed(7)
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))
if kind == "fsdp":
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    model = fully_shard(model, mesh=init_device_mesh("cpu", (world_size,)))
else:
    model = DistributedDataParallel(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
inputs = torch.randn(64, 8)
targets = inputs.sum(dim=1, keepdim=True)
for step in range(20):
    mine = slice(rank, None, world_size)
    optimizer.zero_grad()
    loss = torch.nn.functional.mse_loss(model(inputs[mine]), targets[mine])
    loss.backward()
    optimizer.step()
    if step == 5 and os.path.exists(os.path.join(control, f"kill.{rank}.{restarts}")):
        os.kill(os.getpid(), 9)
total = loss.detach().clone()
dist.all_reduce(total)
result = {"rank": rank, "restarts": restarts, "loss": total.item(), "outermost": outermost.item()}
result["master"] = os.environ["MASTER_ADDR"]
path = os.path.join(results, f"result.{rank}")
with open(path + ".draft", "w") as file:
    json.dump(result, file)
os.rename(path + ".draft", path)
dist.barrier()
dist.destroy_process_group()
if backend == "gloo":
    # Threads of torch's own gloo may abort the process while the interpreter is finalized ("terminate called without an
    # active exception", seen with stock torch 2.15 on busy machines). The result has been written.
    os._exit(0)
