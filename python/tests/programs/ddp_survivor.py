"""DistributedDataParallel that survives: rank 1 dies by kill -9 in the middle of a step, once."""

import json
import os
import signal
from pathlib import Path

import torch
from torch.nn.parallel import DistributedDataParallel

import elastic_node.torch as en

ONCE = Path(os.environ["CONTROL"]) / "killed"
STEPS = 40
DEVICE = os.environ.get("DEVICE", "cpu")

en.init()
torch.set_default_device(DEVICE)
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))
state = en.elastic.TorchState(model, torch.optim.Adam(model.parameters(), lr=0.01), step=0, losses=[])
process = {"calls": 0, "aborted": 0}


@en.elastic.run
def train(state):
    process["calls"] += 1
    en.init_process_group()
    replica = DistributedDataParallel(state.model)
    while state.step < STEPS:
        # The same batch on every rank, so that the history does not depend on the size of the world.
        x = torch.randn(32, 8, generator=torch.Generator(DEVICE).manual_seed(state.step))
        loss = ((replica(x) - x.sum(1, keepdim=True)) ** 2).mean()
        state.optimizer.zero_grad()
        if state.step == STEPS // 2 and en.rank() == 1 and not ONCE.exists():
            ONCE.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        try:
            loss.backward()
        except RuntimeError:
            process["aborted"] += 1
            raise
        state.optimizer.step()
        state.losses.append(round(loss.item(), 5))
        state.step += 1
        state.commit()


train(state)
said = {"rank": en.rank(), "losses": state.losses, "step": state.step, **process}
print(json.dumps(said), flush=True)
