"""A training whose loop sets gradients to zero behind its commit, while the world grows as planned. Rank 1 dies by kill -9, once,
and the other rank trains on alone until the new one joins. The first argument says how gradients are averaged, the second one
what lets the change take effect: "commit" or "check". "accumulated" has two backward passes a step, and looks between them. The
weight afterwards shows whether each gradient counted once."""

import json
import sys

import torch
from dying import die_once
from torch.nn.parallel import DistributedDataParallel

import elastic_node.torch as en

HOW, CHANGES_AT = sys.argv[1:]
STEPS_TOGETHER = 8
PASSES = 2 if HOW == "accumulated" else 1

en.init()
model = torch.nn.Linear(1, 1, bias=False)
torch.nn.init.zeros_(model.weight)
optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
if HOW in ("distributed", "accumulated"):
    optimizer = en.DistributedOptimizer(optimizer, model.named_parameters(), backward_passes_per_step=PASSES)
state = en.elastic.TorchState(model=model, optimizer=optimizer, step=0, alone=0, end=None)
process = {"calls": 0, "had_gradients": False}


@en.elastic.run
def train(state):
    process["calls"] += 1
    process["had_gradients"] |= model.weight.grad is not None
    replica = model
    if HOW == "ddp":
        en.init_process_group()
        replica = DistributedDataParallel(model)
    while state.end is None or state.step < state.end:
        if en.size() == 2:
            die_once(1)
            if state.alone:
                state.end = state.end or state.step + STEPS_TOGETHER
        # A gradient of -1 on each rank: the weight counts the passes.
        (-replica(torch.ones(1, 1))).sum().backward()
        if HOW == "accumulated":
            state.check_host_updates()
            (-replica(torch.ones(1, 1))).sum().backward()
        if HOW == "plain":
            model.weight.grad = en.allreduce(model.weight.grad)
        optimizer.step()
        state.step += 1
        state.alone += en.size() == 1
        if CHANGES_AT == "commit":
            state.commit()
        elif HOW != "accumulated":
            state.check_host_updates()
        optimizer.zero_grad()


train(state)
told = {"rank": en.rank(), "weight": model.weight.item(), "step": state.step, "alone": state.alone}
print(json.dumps({**told, **process}), flush=True)
