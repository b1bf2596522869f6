"""DDP or FSDP2 over several hosts, elastic in process: no process is started anew but the one that died. Arguments: ddp or
fsdp, a folder for results, a folder with control files. The first process of slot 2 kills itself on the way if the control
file `kill` is there. Every rank trains on its part of a batch, so that the losses depend on the size of the world."""

import json
import os
import sys

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import elastic_node.torch as en

kind, results, control = sys.argv[1:4]
STEPS = 20
torch.manual_seed(7)
inputs = torch.randn(64, 8)
targets = inputs.sum(dim=1, keepdim=True)


def layers():
    torch.manual_seed(7)
    return torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))


en.init()
began = en.rank()
process = {"calls": 0, "sub_group": 0.0}
state = en.elastic.ObjectState(weights=layers().state_dict(), step=0, losses=[])


def whole(model):
    """All weights of a model that is in shards, on every rank."""
    tensors = model.state_dict()
    return {name: (it.full_tensor() if hasattr(it, "full_tensor") else it).clone() for name, it in tensors.items()}


@en.elastic.run
def train(state):
    process["calls"] += 1
    dist.init_process_group("elastic")
    rank, size = dist.get_rank(), dist.get_world_size()
    ends = dist.new_group([0, size - 1])
    model = layers()
    model.load_state_dict(state.weights)
    if kind == "fsdp":
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        module = model = fully_shard(model, mesh=init_device_mesh("cpu", (size,)))
    else:
        module, model = model, DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    while state.step < STEPS:
        mine = slice(rank, None, size)
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(model(inputs[mine]), targets[mine])
        if state.step == 5 and began == 2 and os.path.exists(os.path.join(control, "kill")):
            try:
                os.rename(os.path.join(control, "kill"), os.path.join(control, "killed"))
            except FileNotFoundError:
                pass
            else:
                os.kill(os.getpid(), 9)
        loss.backward()
        optimizer.step()
        total = loss.detach().clone()
        dist.all_reduce(total)
        if rank in (0, size - 1):
            outermost = torch.tensor([rank + 1.0])
            dist.all_reduce(outermost, group=ends)
            process["sub_group"] = outermost.item()
        state.weights = whole(module)
        state.losses = [*state.losses, total.item()]
        state.step += 1
        state.commit()


train(state)
result = {"rank": en.rank(), "pid": os.getpid(), "losses": state.losses, "generation": en.generation(), **process}
path = os.path.join(results, f"result.{en.rank()}")
with open(path + ".draft", "w") as file:
    json.dump(result, file)
os.rename(path + ".draft", path)
