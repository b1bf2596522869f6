"""A training that adds a group to its optimiser at one step (gradual unfreezing), and commits in every fourth. Rank 1 dies by kill -9,
once: the argument says in which step. Each rank tells its weights, and those of the same training by a plain optimiser."""

import sys

import torch
from comparing import tell
from dying import die_once

import elastic_node.torch as en

STEPS, ADDED_AT, COMMITTED_EACH = 14, 6, 4
KILLED_AT = int(sys.argv[1])


def made():
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 2))
    return model, torch.optim.SGD(model[2].parameters(), lr=0.05, momentum=0.9)


def step(model, optimizer, number, is_disturbed):
    if number >= ADDED_AT and len(optimizer.param_groups) == 1:
        optimizer.add_param_group({"params": list(model[0].parameters()), "lr": 0.02})
    x = torch.randn(5, 3, generator=torch.Generator().manual_seed(number))
    optimizer.zero_grad()
    (model(x) - x[:, :2]).square().mean().backward()
    if is_disturbed and number == KILLED_AT:
        die_once(1)
    optimizer.step()


en.init()
model, optimizer = made()
optimizer = en.DistributedOptimizer(optimizer)
state = en.elastic.TorchState(model=model, optimizer=optimizer, step=0)
process = {"calls": 0}


@en.elastic.run
def train(state):
    process["calls"] += 1
    while state.step < STEPS:
        step(model, optimizer, state.step, is_disturbed=True)
        state.step += 1
        if state.step % COMMITTED_EACH == 0:
            state.commit()


train(state)
alone, plain = made()
for number in range(STEPS):
    step(alone, plain, number, is_disturbed=False)
tell(model, alone, process)
