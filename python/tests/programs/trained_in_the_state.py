"""A parameter that is an attribute of the state by itself, with its optimiser beside it, on two ranks; then states that have parameters
in other objects. Prints the parameter after training, and the refusals."""

import dataclasses
import json

import torch

import elastic_node.torch as en

STEPS, LEFT = 20, torch.tensor([[1.0], [2.0], [3.0]])


@dataclasses.dataclass
class Networks:
    encoder: torch.nn.Module


class Average:
    def __init__(self, model):
        self.model = model
        self.shadow = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}


def refusal_of(make):
    """What `run` says to a state with an optimiser of this model."""
    model = torch.nn.Linear(3, 1)
    state = en.elastic.TorchState(optimizer=torch.optim.SGD(model.parameters(), lr=0.1), **make(model))
    try:
        en.elastic.run(lambda state: None)(state)
    except TypeError as error:
        return str(error)


en.init()
torch.manual_seed(0)
x = torch.randn(96, 3)
y = x @ LEFT
refusals = {
    "dataclass": refusal_of(lambda model: {"networks": Networks(model)}),
    "average": refusal_of(lambda model: {"model": model, "average": Average(model)}),
    "list": refusal_of(lambda model: {"parameters": list(model.parameters())}),
}
torch.manual_seed(en.rank())
weight = torch.randn(3, 1, requires_grad=True)
optimizer = en.DistributedOptimizer(torch.optim.SGD([weight], lr=0.1))
state = en.elastic.TorchState(weight=weight, optimizer=optimizer, step=0)


@en.elastic.run
def train(state):
    while state.step < STEPS:
        rows = slice(en.rank(), None, en.size())
        state.optimizer.zero_grad()
        (x[rows] @ state.weight - y[rows]).square().mean().backward()
        state.optimizer.step()
        state.step += 1
        state.commit()
    return state.weight is weight


stays = train(state)
print(json.dumps({"stays": stays, "weight": weight.flatten().tolist(), "refusals": refusals}), flush=True)
