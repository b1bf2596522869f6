"""Two modules and their optimisers in a dictionary and a list of the state, as programs with a generator and a discriminator have
them. Rank 1 dies by kill -9 once."""

import json
import os
import signal
from pathlib import Path

import torch

import elastic_node.torch as en

ONCE = Path(os.environ["CONTROL"]) / "killed"
STEPS, KILLED_AT = 30, 12

en.init()
torch.manual_seed(en.rank() if en.is_initialized() and en.size() > 1 else 0)
models = {"generator": torch.nn.Linear(2, 1), "discriminator": torch.nn.Linear(2, 1)}
optimizers = [torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9) for model in models.values()]
state = en.elastic.TorchState(models=models, optimizers=optimizers, kinds=(torch.Generator(), "words"), step=0)
process = {"calls": 0, "unmoved": 0}


@en.elastic.run
def train(state):
    process["calls"] += 1
    while state.step < STEPS:
        before = [parameter.detach().clone() for model in models.values() for parameter in model.parameters()]
        for optimizer in state.optimizers:
            optimizer.zero_grad()
        sum((model(torch.ones(1, 2)) - 1).square().sum() for model in models.values()).backward()
        for model in models.values():
            for parameter in model.parameters():
                en.allreduce_(parameter.grad)
        for optimizer in state.optimizers:
            optimizer.step()
        if state.step == KILLED_AT and en.rank() == 1 and not ONCE.exists():
            ONCE.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        after = [parameter for model in models.values() for parameter in model.parameters()]
        process["unmoved"] += sum(torch.equal(one, other) for one, other in zip(before, after))
        state.step += 1
        state.commit()


train(state)
print(
    json.dumps(
        {
            **process,
            "rank": en.rank(),
            "weights": [parameter.tolist() for model in models.values() for parameter in model.parameters()],
            "are_the_same_objects": state.models is models
            and all(
                group["params"][0] is model.weight
                for model, optimizer in zip(models.values(), state.optimizers)
                for group in optimizer.param_groups
            ),
        }
    ),
    flush=True,
)
