"""The cost of `TorchState.commit` for a state on a GPU, in a world of one: as JSON, the median in milliseconds, with tensors copied
together into page-locked memory and one by one, beside the bare copy of as many bytes. `bench/gpu.sh` calls it.

Usage: gpu_commit.py BYTES
"""

import json
import statistics
import sys
import time

import torch

import elastic_node.torch as en
from elastic_node import _torch_tensors

BYTES, LAYERS, ROUNDS = int(sys.argv[1]), 32, 9

en.init()
width = max(1, int((BYTES / LAYERS / 4) ** 0.5))
model = torch.nn.Sequential(*[torch.nn.Linear(width, width, bias=False) for _ in range(LAYERS)]).cuda()
state = en.elastic.TorchState(model)


def median_ms(call):
    times = []
    for _ in range(ROUNDS):
        torch.cuda.synchronize()
        began = time.perf_counter()
        call()
        torch.cuda.synchronize()
        times.append(time.perf_counter() - began)
    return round(statistics.median(times) * 1e3, 2)


found = {"bytes": sum(it.nbytes for it in model.parameters()), "together_ms": median_ms(state.commit)}
_torch_tensors.PINNED_MAX_BYTES = 0
found["one_by_one_ms"] = median_ms(state.commit)
pinned = [torch.empty_like(it, device="cpu", pin_memory=True) for it in model.parameters()]
with torch.no_grad():
    found["copy_ms"] = median_ms(
        lambda: [host.copy_(it, non_blocking=True) for host, it in zip(pinned, model.parameters())]
    )
print(json.dumps(found))
en.shutdown()
