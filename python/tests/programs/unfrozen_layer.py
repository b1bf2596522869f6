"""A training that begins with a frozen layer and unfreezes it at one step, as fine-tuning does. Rank 1 dies by kill -9, once:
in the step that unfreezes the layer, or in a later one. Its successor, and after a rollback the survivor, does not come to
that line as the step is made again, or comes to it again. The arguments say how gradients are averaged, "optimizer", "ddp" or
"shards", in which step rank 1 dies, and in which one the layer is frozen again, if it is. Each rank tells its weights, and
those of the same training by a plain optimiser."""

import sys

import torch
from comparing import tell
from dying import die_once

import elastic_node.torch as en

STEPS, UNFROZEN_AT = 10, 4
HOW, KILLED_AT, FROZEN_AT = sys.argv[1], int(sys.argv[2]), int((*sys.argv, STEPS)[3])


def made():
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 2))
    model[0].requires_grad_(False)
    return model, torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)


def unfreeze(model, number):
    if number == UNFROZEN_AT:
        model[0].requires_grad_(True)
    if number == FROZEN_AT:
        model[0].requires_grad_(False)


def step(model, forward, optimizer, number, is_disturbed):
    x = torch.randn(5, 3, generator=torch.Generator().manual_seed(number))
    optimizer.zero_grad()
    (forward(x) - x[:, :2]).square().mean().backward()
    if is_disturbed and number == KILLED_AT:
        die_once(1)
    if HOW == "shards" and number == UNFROZEN_AT and not is_disturbed:
        # Gradients by shard of a parameter that was not known before count from the next step on.
        model[0].zero_grad(set_to_none=False)
    optimizer.step()


en.init()
model, optimizer = made()
if HOW == "optimizer":
    optimizer = en.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
if HOW == "shards":
    optimizer = en.DistributedOptimizer(optimizer, shards=2)
state = en.elastic.TorchState(model=model, optimizer=optimizer, step=0)
process = {"calls": 0}


@en.elastic.run
def train(state):
    process["calls"] += 1
    forward = model
    if HOW == "ddp":
        torch.distributed.init_process_group("elastic")
    while state.step < STEPS:
        unfreeze(model, state.step)
        if HOW == "ddp" and (forward is model or state.step == UNFROZEN_AT):
            # A replica averages the parameters that are not frozen as it is made.
            forward = torch.nn.parallel.DistributedDataParallel(model)
        step(model, forward, optimizer, state.step, is_disturbed=True)
        state.step += 1
        state.commit()


train(state)
alone, plain = made()
for number in range(STEPS):
    unfreeze(alone, number)
    step(alone, alone, plain, number, is_disturbed=False)
tell(model, alone, process)
