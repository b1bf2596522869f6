"""A torch training that takes its time, so that every one of its processes can be killed. At its end it says whether each
sample was trained once, over all lives of the job."""

import json
import time

import torch

import elastic_node.torch as en

SAMPLES, BATCH, EPOCHS, STEP_S = 480, 4, 2, 0.03

en.init()
torch.manual_seed(1)
model = torch.nn.Sequential()
model.add_module("layer1", torch.nn.Linear(3, 2))
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
state = en.elastic.TorchState(
    model=model,
    optimizer=optimizer,
    sampler=en.ElasticDistributedSampler(range(SAMPLES)),
    step=0,
    seen=[[] for _ in range(EPOCHS)],
)
process = {"began_at": None}
distributed = en.DistributedOptimizer(optimizer)


@en.elastic.run
def train(state):
    if process["began_at"] is None:
        process["began_at"] = state.step
    while state.sampler.epoch < EPOCHS:
        for batch in state.sampler.batches(BATCH):
            distributed.zero_grad()
            state.model(torch.ones(1, 3)).sum().backward()
            distributed.step()
            parts = en.allgather_object(batch.indices)
            state.seen[state.sampler.epoch] += [index for part in parts for index in part]
            state.step += 1
            time.sleep(STEP_S)
            state.commit()
        state.sampler.set_epoch(state.sampler.epoch + 1)


train(state)
print(
    json.dumps(
        {
            "rank": en.rank(),
            "size": en.size(),
            "step": state.step,
            "began_at": process["began_at"],
            "weight": model.layer1.weight.flatten().tolist(),
            "exact": all(sorted(seen) == list(range(SAMPLES)) for seen in state.seen),
        }
    ),
    flush=True,
)
