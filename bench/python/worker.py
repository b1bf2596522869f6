"""The training program of `bench recovery --mode python`: DistributedDataParallel over a small model, a commit a step,
and a record of each commit, as `bench/src/record.rs` reads it."""

import argparse
import os
import struct
import time
from pathlib import Path

import torch
from torch.nn.parallel import DistributedDataParallel

import elastic_node.torch as en

arguments = argparse.ArgumentParser(description=__doc__)
arguments.add_argument("--records", type=Path, required=True)
arguments.add_argument("--step-ms", type=float, default=5)
options = arguments.parse_args()

torch.set_num_threads(1)
en.init()
# As many numbers as the digits example trains.
model = torch.nn.Sequential(torch.nn.Linear(64, 48), torch.nn.ReLU(), torch.nn.Linear(48, 10))
state = en.elastic.TorchState(model, torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9), step=0)
images, labels = torch.rand(16, 64), torch.randint(10, (16,))


@en.elastic.run
def train(state):
    en.init_process_group()
    replica = DistributedDataParallel(state.model)
    while True:
        state.optimizer.zero_grad()
        torch.nn.functional.cross_entropy(replica(images), labels).backward()
        state.optimizer.step()
        time.sleep(options.step_ms / 1000)
        state.step += 1
        state.commit()
        now_ns = time.clock_gettime_ns(time.CLOCK_MONOTONIC)
        records.write(struct.pack("=QQQII", now_ns, en.generation(), state.step, en.size(), en.rank()))


with open(options.records / str(os.getpid()), "wb", buffering=0) as records:
    train(state)
