"""Rank 1 computes for longer than the others in each step. Trains until the job's status names a straggler, and prints what it
shows of each rank; with `ddp` as an argument by DistributedDataParallel."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import numpy

import elastic_node as en

PATIENCE_S = 60
COMPUTE_S = 0.01
SLOW_COMPUTE_S = 0.06

en.init()


def status():
    state = str(Path(os.environ["CONTROL"]) / "state")
    command = [os.environ["BINARY"], "status", "--json", "--state-dir", state]
    done = subprocess.run(command, capture_output=True, text=True)
    return json.loads(done.stdout) if done.returncode == 0 else {"stragglers": [], "workers": []}


def arrays_step():
    gradient = numpy.ones(64, numpy.float32)

    def step():
        time.sleep(SLOW_COMPUTE_S if en.rank() == 1 else COMPUTE_S)
        en.allreduce(gradient, op=en.Sum)

    return step


def ddp_step():
    import torch
    from torch.nn.parallel import DistributedDataParallel

    import elastic_node.torch

    class Slow(torch.nn.Linear):
        def forward(self, x):
            time.sleep(SLOW_COMPUTE_S if en.rank() == 1 else COMPUTE_S)
            return super().forward(x)

    elastic_node.torch.init_process_group()
    replica = DistributedDataParallel(Slow(8, 1))
    return lambda: replica(torch.ones(4, 8)).sum().backward()


@en.elastic.run
def train(state):
    step = ddp_step() if "ddp" in sys.argv else arrays_step()
    until, over = time.monotonic() + PATIENCE_S, 0
    while not over:
        for _ in range(20):
            step()
            state.commit()
        if en.rank() == 0:
            now = status()
            over = int(bool(now["stragglers"]) or time.monotonic() > until)
        over = en.allreduce(over, op=en.Sum)
    if en.rank() == 0:
        shown = {it["rank"]: [it["step_ms"], it["compute_ms"], it["waiting_ms"]] for it in now["workers"]}
        print(json.dumps({"shown": shown, "stragglers": now["stragglers"]}), flush=True)


train(en.elastic.ObjectState(step=0))
