"""The cost of `TorchState.commit` for a state on a GPU: as JSON, the median in milliseconds, with tensors copied together into
page-locked memory and one by one, beside the bare copy of as many bytes. `bench/gpu.sh` runs it as a job of one worker.

Usage: gpu_commit.py BYTES [cuda|cpu]
"""

import json
import statistics
import sys
import time

import torch

import elastic_node.torch as en
from elastic_node import _torch_tensors

BYTES, LAYERS, ROUNDS = int(sys.argv[1]), 32, 9
DEVICE = sys.argv[2] if len(sys.argv) > 2 else "cuda"


def synchronize():
    if DEVICE == "cuda":
        torch.cuda.synchronize()


def median_ms(call):
    # The first two calls touch the memory of the two commits for the first time.
    times = []
    for _ in range(ROUNDS + 2):
        synchronize()
        began = time.perf_counter()
        call()
        synchronize()
        times.append(time.perf_counter() - began)
    return round(statistics.median(times[2:]) * 1e3, 2)


en.init()
width = max(1, int((BYTES / LAYERS / 4) ** 0.5))
model = torch.nn.Sequential(*[torch.nn.Linear(width, width, bias=False) for _ in range(LAYERS)]).to(DEVICE)


@en.elastic.run
def measure(state):
    weights = [parameter.detach() for parameter in model.parameters()]
    found = {"device": DEVICE, "bytes": sum(it.nbytes for it in weights), "together_ms": median_ms(state.commit)}
    _torch_tensors.PINNED_MAX_BYTES = 0
    found["one_by_one_ms"] = median_ms(state.commit)
    copies = [torch.empty_like(it, device="cpu", pin_memory=DEVICE == "cuda") for it in weights]

    def copy():
        for target, source in zip(copies, weights):
            target.copy_(source, non_blocking=True)

    print(json.dumps({**found, "copy_ms": median_ms(copy)}), flush=True)


measure(en.elastic.TorchState(model))
