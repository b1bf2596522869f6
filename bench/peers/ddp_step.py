"""The training program of `bench ddp-step`: steps of torch's DistributedDataParallel over gloo and over backend "elastic", in turns, in
the same processes, with the same model and data. `bench/gpu.sh` runs it with tensors on a GPU, beside NCCL. Rank 0 writes the results as one JSON object to the file named by --results."""

import argparse
import json
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

arguments = argparse.ArgumentParser(description=__doc__)
arguments.add_argument("--results", type=Path, required=True)
arguments.add_argument("--parameters", type=float, required=True, help="millions of parameters of the model")
arguments.add_argument("--steps", type=int, default=20, help="steps of a turn")
arguments.add_argument("--turns", type=int, default=10)
arguments.add_argument("--batch", type=int, default=4, help="samples of a rank in a step")
arguments.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
options = arguments.parse_args()

LAYERS = 4
WARM_UP = 5

torch.set_num_threads(1)
torch.set_default_device(options.device)
if options.device == "cuda":
    import elastic_node.torch

    # Only the group of a generation has NCCL.
    elastic_node.torch.init()
    elastic_node.torch.barrier()
dist.init_process_group("elastic")
peer = {"cpu": "gloo", "cuda": "nccl"}[options.device]
groups = {"ours": dist.group.WORLD, peer: dist.new_group(backend=peer)}
width = max(1, round((options.parameters * 1e6 / LAYERS) ** 0.5))


def stack():
    """The same model for every group."""
    torch.manual_seed(0)
    return torch.nn.Sequential(*[torch.nn.Linear(width, width) for _ in range(LAYERS)])


inputs = torch.rand(options.batch, width)


def seconds_of(model, optimizer, steps):
    began = time.perf_counter()
    for _ in range(steps):
        optimizer.zero_grad()
        model(inputs).square().mean().backward()
        optimizer.step()
    if options.device == "cuda":
        torch.cuda.synchronize()
    return (time.perf_counter() - began) / steps


trained = {}
for name, group in groups.items():
    model = DistributedDataParallel(stack(), process_group=group)
    trained[name] = (model, torch.optim.SGD(model.parameters(), lr=1e-3))


def exchange_nothing(_, bucket):
    """A communication hook that leaves the gradients as they are."""
    done = torch.futures.Future()
    done.set_result(bucket.buffer())
    return done


# The cost of DDP's own work: the gradients' way into its buckets and back.
unexchanged = DistributedDataParallel(stack())
unexchanged.register_comm_hook(None, exchange_nothing)
trained["unexchanged"] = (unexchanged, torch.optim.SGD(unexchanged.parameters(), lr=1e-3))
# The cost of a step without any communication, and without DDP.
alone = stack()
trained["alone"] = (alone, torch.optim.SGD(alone.parameters(), lr=1e-3))
times = {name: [] for name in trained}
for turn in range(options.turns + 1):
    for name, (model, optimizer) in trained.items():
        dist.barrier()
        took = seconds_of(model, optimizer, options.steps if turn else WARM_UP)
        if turn:
            times[name].append(took * 1e3)
weights = [torch.cat([it.detach().flatten() for it in trained[name][0].parameters()]) for name in groups]
if not torch.allclose(weights[0], weights[1], rtol=1e-3, atol=1e-5):
    raise SystemExit("the two groups have trained different weights")
if dist.get_rank() == 0:
    count = sum(it.numel() for it in alone.parameters())
    options.results.write_text(json.dumps({"parameters": count, "ms": times}))
dist.destroy_process_group()
