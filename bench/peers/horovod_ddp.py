"""Horovod Elastic beside `bench recovery --mode python`: the training of `bench/python/worker.py` with Horovod's names,
a commit a step, and a record of each as `bench/src/record.rs` reads it. Started by horovodrun."""

import argparse
import os
import struct
import time
from pathlib import Path

import horovod.torch as hvd
import torch

arguments = argparse.ArgumentParser(description=__doc__)
arguments.add_argument("--records", type=Path, required=True)
arguments.add_argument("--step-ms", type=float, default=5)
arguments.add_argument("--line-bytes", type=int, default=0, help="bytes of the line that is printed at each step")
options = arguments.parse_args()

torch.set_num_threads(1)
hvd.init()
model = torch.nn.Sequential(torch.nn.Linear(64, 48), torch.nn.ReLU(), torch.nn.Linear(48, 10))
plain = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
optimizer = hvd.DistributedOptimizer(plain, named_parameters=model.named_parameters())
# Horovod does not number its groups, so the state does.
state = hvd.elastic.TorchState(model=model, optimizer=optimizer, step=0, generation=0)
images, labels = torch.rand(16, 64), torch.randint(10, (16,))


@hvd.elastic.run
def train(state):
    state.generation += 1
    state.save()  # A survivor of a group without a commit must not give its number to the next.
    while True:
        state.optimizer.zero_grad()
        torch.nn.functional.cross_entropy(state.model(images), labels).backward()
        state.optimizer.step()
        time.sleep(options.step_ms / 1000)
        state.step += 1
        state.commit()
        now_ns = time.clock_gettime_ns(time.CLOCK_MONOTONIC)
        records.write(struct.pack("=QQQII", now_ns, state.generation, state.step, hvd.size(), hvd.rank()))
        if options.line_bytes:
            print(f"step {state.step}".ljust(options.line_bytes - 1), flush=True)


with open(options.records / str(os.getpid()), "wb", buffering=0) as records:
    train(state)
