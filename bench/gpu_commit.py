"""The cost of `TorchState.commit` for a state on a GPU, as JSON, medians in milliseconds: of the call alone, whose copies to main
memory go on beside the next step; of one commit behind the other, each of which waits for the copies of the one before; and with
tensors that are copied one by one before the commit returns. Beside them, the bare copy of as many bytes to page-locked memory.
`bench/gpu.sh` runs it as a job of one worker.

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


def median_ms(call, pause_s=0.0):
    # The first two calls touch the memory of the two commits for the first time.
    times = []
    for _ in range(ROUNDS + 2):
        # The step, in which nothing is computed: the copies of the commit before end.
        time.sleep(pause_s)
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
    found = {"device": DEVICE, "bytes": sum(it.nbytes for it in weights), "in_a_row_ms": median_ms(state.commit)}
    found["call_ms"] = median_ms(state.commit, pause_s=max(0.1, 3 * found["in_a_row_ms"] / 1e3))
    _torch_tensors.PINNED_MAX_BYTES = 0
    found["one_by_one_ms"] = median_ms(state.commit)
    copies = [torch.empty_like(it, device="cpu", pin_memory=DEVICE == "cuda") for it in weights]

    def copy():
        for target, source in zip(copies, weights):
            target.copy_(source, non_blocking=True)

    print(json.dumps({**found, "copy_ms": median_ms(copy)}), flush=True)


measure(en.elastic.TorchState(model))
