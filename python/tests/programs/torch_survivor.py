"""All parts of a training in one `TorchState`. Rank 1 dies by kill -9 between the change of its weights and that of
its counters, once. The position of each part afterwards shows whether all went back together."""

import json
import os
import signal
from pathlib import Path

import torch

import elastic_node.torch as en

ONCE = Path(os.environ["CONTROL"]) / "killed"
SAMPLES, BATCH, EPOCHS, KILLED_AT = 240, 4, 2, 9

if "COPIES_TAKE_S" in os.environ:
    import copies_beside

    copies_beside.pretend(float(os.environ["COPIES_TAKE_S"]))

en.init()
torch.set_default_device(os.environ.get("DEVICE", "cpu"))
model = torch.nn.Linear(1, 1, bias=False)
torch.nn.init.zeros_(model.weight)
optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
state = en.elastic.TorchState(
    model=model,
    optimizer=optimizer,
    scheduler=torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0),
    random=torch.Generator().manual_seed(11),
    sampler=en.ElasticDistributedSampler(range(SAMPLES)),
    step=0,
    drawn=[],
    seen=[[] for _ in range(EPOCHS)],
)
process = {"calls": 0}
distributed = en.DistributedOptimizer(optimizer)


@en.elastic.run
def train(state):
    process["calls"] += 1
    while state.sampler.epoch < EPOCHS:
        for batch in state.sampler.batches(BATCH):
            distributed.zero_grad()
            # A gradient of -1 on each rank: the weight counts the steps.
            (-state.model(torch.ones(1, 1))).sum().backward()
            distributed.step()
            if state.step == KILLED_AT and en.rank() == 1 and not ONCE.exists():
                ONCE.touch()
                os.kill(os.getpid(), signal.SIGKILL)
            state.scheduler.step()
            state.drawn.append(torch.rand(1, generator=state.random, device="cpu").item())
            parts = en.allgather_object(batch.indices)
            state.seen[state.sampler.epoch] += [index for part in parts for index in part]
            state.step += 1
            state.commit()
        state.sampler.set_epoch(state.sampler.epoch + 1)


train(state)
due = torch.Generator().manual_seed(11)
print(
    json.dumps(
        {
            "rank": en.rank(),
            "step": state.step,
            "weight": model.weight.item(),
            "scheduled": state.scheduler.last_epoch,
            "drawn_in_order": state.drawn == [torch.rand(1, generator=due, device="cpu").item() for _ in range(state.step)],
            "exact": all(sorted(seen) == list(range(SAMPLES)) for seen in state.seen),
            "calls": process["calls"],
        }
    ),
    flush=True,
)
