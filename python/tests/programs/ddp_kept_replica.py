"""DDP whose loss is reduced between the forward and the backward pass. A rank dies by kill -9 there, so that the survivor's replica
still waits for a backward pass. Prints how often training began, and the sum of the weights.

Arguments: `handle`, whose error would keep the frames of the training function; or `trainer`, an object that knows itself."""

import gc
import json
import sys

import torch
import torch.distributed as dist
from dying import die_once
from torch.nn.parallel import DistributedDataParallel

import elastic_node.torch as en

STEPS, KILLED_AT = 12, 4


class Trainer:
    def __init__(self, replica):
        self.replica = replica
        self.step_of = self.step

    def step(self):
        step(self.replica, dist.all_reduce)


def step(replica, reduce):
    state.optimizer.zero_grad()
    out = replica(rows)
    loss = (out - rows.sum(1, keepdim=True)).square().mean()
    if state.step == KILLED_AT:
        die_once(1)
    reduce(loss.detach().clone())
    loss.backward()
    state.optimizer.step()


en.init()
# It would free the cycle by chance.
gc.disable()
torch.manual_seed(0)
rows = torch.randn(8, 4)
model = torch.nn.Linear(4, 1)
state = en.elastic.TorchState(model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1), step=0)
calls = []


@en.elastic.run
def train(state):
    calls.append(en.size())
    en.init_process_group()
    replica = DistributedDataParallel(state.model)
    trainer = Trainer(replica) if sys.argv[1] == "trainer" else None
    while state.step < STEPS:
        if trainer:
            trainer.step_of()
        else:
            step(replica, en.allreduce)
        state.step += 1
        state.commit()


train(state)
weights = sum(parameter.sum() for parameter in model.parameters()).item()
print(json.dumps({"rank": en.rank(), "calls": calls, "weights": weights}), flush=True)
