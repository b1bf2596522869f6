"""DDP by logical shard whose optimiser steps after two steps of the plan. Prints the weights, which are the same in a world of any size,
and those of plain torch."""

import json

import torch
from torch.nn.parallel import DistributedDataParallel

import elastic_node.torch as en

SAMPLES, BATCH, SHARDS = 48, 12, 4

torch.set_default_dtype(torch.float64)
en.init()
torch.manual_seed(0)
x = torch.randn(SAMPLES, 6)
y = x.sum(1, keepdim=True).sin()
model, plain = torch.nn.Linear(6, 1), torch.nn.Linear(6, 1)
plain.load_state_dict(model.state_dict())
sampler = en.ShardedSampler(range(SAMPLES), global_batch=BATCH, shards=SHARDS, shuffle=False)
state = en.elastic.TorchState(model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1), sampler=sampler)


def loss_of(network, rows):
    return (network(x[rows]) - y[rows]).square().mean() / 2


@en.elastic.run
def train(state):
    en.init_process_group()
    replica = DistributedDataParallel(state.model)
    hook = en.register_shard_hook(replica, shards=SHARDS)
    for number, step in enumerate(sampler.steps()):
        if number % 2 == 0:
            state.optimizer.zero_grad()
        for shard in hook.passes(step):
            (loss_of(replica, shard.indices) * shard.weight).backward()
        if number % 2:
            state.optimizer.step()


train(state)
optimizer = torch.optim.SGD(plain.parameters(), lr=0.1)
for begin in range(0, SAMPLES, BATCH):
    if begin % (2 * BATCH) == 0:
        optimizer.zero_grad()
    loss_of(plain, list(range(begin, begin + BATCH))).backward()
    if begin % (2 * BATCH):
        optimizer.step()
weights = {
    name: torch.cat([parameter.flatten() for parameter in network.parameters()]).tolist()
    for name, network in {"sharded": model, "plain": plain}.items()
}
print(json.dumps(weights), flush=True)
