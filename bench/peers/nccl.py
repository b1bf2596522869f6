"""A rank of the measurement beside `gpu/examples/measure.rs`: all-reduce and broadcast of torch.distributed over NCCL, as JSON lines on
stdout of rank 0. `bench/gpu.sh` starts it with torchrun; `BYTES_MAX` in the environment is the largest message."""

import json
import os
import time

import torch
import torch.distributed as dist

dist.init_process_group("nccl")
rank, world = dist.get_rank(), dist.get_world_size()
torch.cuda.set_device(rank % torch.cuda.device_count())


def timed(rounds, call):
    for _ in range(min(rounds, 5)):
        call()
        torch.cuda.synchronize()
    times = []
    for _ in range(rounds):
        started = time.perf_counter()
        call()
        torch.cuda.synchronize()
        times.append(time.perf_counter() - started)
    return sorted(times)[len(times) // 2] * 1e6


size = 1 << 10
while size <= int(os.environ["BYTES_MAX"]):
    rounds = max(5, min(500, (256 << 20) // size))
    data = torch.ones(size // 4, device="cuda")
    host = torch.empty(size // 4, pin_memory=True)
    row = {
        "library": "torch",
        "world": world,
        "bytes": size,
        "all_reduce_us": round(timed(rounds, lambda: dist.all_reduce(data)), 1),
        "broadcast_us": round(timed(rounds, lambda: dist.broadcast(data, 0)), 1),
        "copy_to_host_us": round(timed(min(rounds, 20), lambda: host.copy_(data, non_blocking=True)), 1),
    }
    if rank == 0:
        print(json.dumps(row), flush=True)
    size *= 4
dist.destroy_process_group()
