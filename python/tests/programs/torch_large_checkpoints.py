"""A torch training with arrays of some MiB, which a resume leaves in the checkpoint's files until the first commit. With the path
of a file, rank 1 dies in the first step after a resume, once, when all ranks have spoilt their weights."""

import hashlib
import json
import os
import signal
import sys
import time
from pathlib import Path

import torch

import elastic_node.torch as en

STEPS, STEP_S = 60, 0.05
died = Path(sys.argv[1]) if len(sys.argv) > 1 else None

en.init()
torch.manual_seed(1)
torch.set_num_threads(1)
model = torch.nn.Sequential(torch.nn.Linear(512, 1024), torch.nn.BatchNorm1d(1024))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
state = en.elastic.TorchState(
    model=model, optimizer=optimizer, average=torch.zeros(1 << 19), note=["a list", bytes(100_000)], step=0
)
process = {"began_at": None, "files": []}


def files_of_checkpoints():
    """The files of checkpoints that this process has open, also to write them."""
    links = [os.readlink(entry.path) for entry in os.scandir("/proc/self/fd") if os.path.islink(entry.path)]
    return [link for link in links if ".safetensors" in link]


@en.elastic.run
def train(state):
    if process["began_at"] is None:
        process.update(began_at=state.step, files=files_of_checkpoints())
    if died is not None and state.step > 0 and not died.exists():
        with torch.no_grad():
            model[0].weight.zero_()
            state.average.fill_(7)
        en.barrier()
        if en.rank() == 1:
            died.touch()
            os.kill(os.getpid(), signal.SIGKILL)
    while state.step < STEPS:
        optimizer.zero_grad()
        inputs = torch.arange(4 * 512, dtype=torch.float32).reshape(4, 512) / 2048 + state.step
        state.model(inputs).square().mean().backward()
        optimizer.step()
        state.average += model[0].weight.detach().reshape(-1)
        state.step += int(en.allreduce(torch.ones(1)).item())
        time.sleep(STEP_S)
        state.commit()
    process["still_open"] = [file for file in files_of_checkpoints() if file in process["files"]]


train(state)
digest = hashlib.sha256()
moments = [entry["momentum_buffer"] for entry in optimizer.state.values()]
for tensor in [*model.state_dict().values(), *moments, state.average]:
    digest.update(tensor.numpy().tobytes())
print(json.dumps({"sha256": digest.hexdigest(), "step": state.step, **process}), flush=True)
