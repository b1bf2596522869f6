"""A training whose loop sets gradients to zero after the step, not before. Rank 1 dies by kill -9 before its backward
pass, once: the other one has made its own when the step is broken off. The argument says how gradients are averaged.
The weight afterwards shows whether each gradient counted once."""

import json
import sys

import torch
from dying import die_once
from torch.nn.parallel import DistributedDataParallel

import elastic_node.torch as en

STEPS, KILLED_AT = 8, 4
HOW = sys.argv[1]
PASSES = 2 if HOW == "accumulated" else 1

en.init()
model = torch.nn.Linear(1, 1, bias=False)
torch.nn.init.zeros_(model.weight)
optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
# The state has the plain optimiser.
stepping = en.DistributedOptimizer(optimizer, backward_passes_per_step=PASSES) if HOW == "accumulated" else optimizer
state = en.elastic.TorchState(models=[{"of": model}], optimizer=optimizer, step=0)
process = {"calls": 0}


@en.elastic.run
def train(state):
    process["calls"] += 1
    replica = model
    if HOW == "ddp":
        en.init_process_group()
        replica = DistributedDataParallel(model)
    while state.step < STEPS:
        if state.step == KILLED_AT:
            die_once(1)
        for _ in range(PASSES):
            # A gradient of -1 on each rank: the weight counts the passes.
            (-replica(torch.ones(1, 1))).sum().backward()
        if HOW == "plain":
            model.weight.grad = en.allreduce(model.weight.grad)
        stepping.step()
        stepping.zero_grad()
        state.step += 1
        state.commit()


train(state)
told = {"rank": en.rank(), "passes": model.weight.item() / PASSES, "step": state.step}
print(json.dumps({**told, **process}), flush=True)
