"""Experts that look alike, with an optimiser for each. Each rank's batch goes to one expert, another one on each rank. Rank 1
dies by kill -9, once. The argument says where the optimisers are made: "before" the training function, "within" it, or one of
them "late" within it and kept; or that rank 1 makes them in another order, and dies not, and each rank steps them in one
order ("swapped") or in its own ("swapped_steps"). Each rank tells its weights, and those of the same training by plain
optimisers."""

import json
import sys

import torch
from dying import die_once

import elastic_node.torch as en

STEPS, LATE_AT, KILLED_AT = 9, 3, 5
HOW, SETTINGS = sys.argv[1], {"shards": {"shards": 2}}.get(sys.argv[2], {})


def made():
    torch.manual_seed(0)
    experts = [torch.nn.Linear(3, 2) for _ in range(2)]
    return experts, [torch.optim.SGD(expert.parameters(), lr=0.05, momentum=0.9) for expert in experts]


def backward(experts, number, rank):
    x = torch.randn(5, 3, generator=torch.Generator().manual_seed(2 * number + rank))
    # The first steps use both.
    used = experts if number < LATE_AT else [experts[(number + rank) % 2]]
    sum((expert(x) - x[:, :2]).square().mean() for expert in used).backward()


def weights(experts):
    return [round(value, 5) for expert in experts for it in expert.parameters() for value in it.detach().flatten().tolist()]


en.init()
experts, plain = made()
distributed = {}


def make(number):
    distributed[number] = en.DistributedOptimizer(plain[number], named_parameters=experts[number].named_parameters(), **SETTINGS)


if HOW == "before":
    make(0), make(1)
if HOW.startswith("swapped"):
    for number in (0, 1) if en.rank() == 0 else (1, 0):
        make(number)
state = en.elastic.TorchState(one=experts[0], other=experts[1], optimizers=plain, step=0)
process = {"calls": 0}


@en.elastic.run
def train(state):
    process["calls"] += 1
    if HOW == "within":
        distributed.clear()
        for optimizer in plain:
            optimizer.__dict__.pop("_reducer", None)
        make(0), make(1)
    while state.step < STEPS:
        if HOW == "late" and 0 not in distributed:
            make(0)
        if HOW == "late" and 1 not in distributed and state.step >= LATE_AT:
            make(1)
        order = distributed if HOW == "swapped_steps" else range(2)
        optimizers = {number: distributed.get(number, plain[number]) for number in order}
        for optimizer in optimizers.values():
            optimizer.zero_grad()
        backward(experts, state.step, en.rank())
        if state.step == KILLED_AT and not HOW.startswith("swapped"):
            die_once(1)
        for number, optimizer in optimizers.items():
            if number not in distributed:
                for parameter in experts[number].parameters():
                    parameter.grad = en.allreduce(parameter.grad)
            optimizer.step()
        state.step += 1
        state.commit()


train(state)
alone, optimizers = made()
for number in range(STEPS):
    for optimizer in optimizers:
        optimizer.zero_grad(set_to_none=False)
    for rank in range(2):
        backward(alone, number, rank)
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                parameter.grad /= 2
        optimizer.step()
told = {"rank": en.rank(), "weights": weights(experts), "expected": weights(alone), **process}
print(json.dumps(told), flush=True)
