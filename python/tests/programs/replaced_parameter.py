"""A training that gives its model another head of the same shape, and the optimiser the new head's parameters in the place of the
old one's. Rank 1 dies by kill -9, once, behind a commit of that: its successor has never had the old parameters. The argument says
how the optimiser is distributed: "plain", "groups" or "shards". Each rank tells its weights, and those of the same training by a
plain optimiser."""

import sys

import torch
from comparing import tell
from dying import die_once

import elastic_node.torch as en

STEPS, REPLACED_AT, COMMITTED_AT, KILLED_AT = 12, 3, 6, 8
HOW = sys.argv[1]


def made():
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 2))
    groups = [{"params": list(model[0].parameters())}, {"params": list(model[2].parameters()), "lr": 0.02}]
    return model, torch.optim.AdamW(groups, lr=0.05)


def step(model, optimizer, number):
    if number == REPLACED_AT:
        torch.manual_seed(9)
        model[2] = torch.nn.Linear(4, 2)
        for parameter in optimizer.param_groups[1]["params"]:
            optimizer.state.pop(parameter, None)
        optimizer.param_groups[1]["params"] = list(model[2].parameters())
    x = torch.randn(5, 3, generator=torch.Generator().manual_seed(number))
    optimizer.zero_grad()
    (model(x) - x[:, :2]).square().mean().backward()
    optimizer.step()


en.init()
model, optimizer = made()
settings = {
    "plain": {"named_parameters": model.named_parameters()},
    "groups": {"groups": [list(model[2].parameters()), list(model[0].parameters())]},
    "shards": {"shards": 2},
}
optimizer = en.DistributedOptimizer(optimizer, **settings[HOW])
state = en.elastic.TorchState(model=model, optimizer=optimizer, step=0)
process = {"calls": 0}


@en.elastic.run
def train(state):
    process["calls"] += 1
    while state.step < STEPS:
        if state.step == KILLED_AT:
            die_once(1)
        step(model, optimizer, state.step)
        state.step += 1
        if state.step == COMMITTED_AT:
            state.commit()


train(state)
alone, plain = made()
for number in range(STEPS):
    step(alone, plain, number)
tell(model, alone, process)
