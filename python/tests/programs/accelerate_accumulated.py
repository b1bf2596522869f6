"""Accumulates gradients of three batches with accelerate, and commits and saves after each of them. Prints the refusals, by the number of
the batch."""

import json

import torch
from torch.utils.data import DataLoader, TensorDataset

import elastic_node.torch as en
from elastic_node.integrations.accelerate import ElasticAccelerator

BATCHES, BATCH = 3, 2
en.init()
x = torch.randn(BATCHES * BATCH * en.size(), 4)
data = TensorDataset(x, x.sum(1, keepdim=True))
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
sampler = en.ElasticDistributedSampler(data)
state = en.elastic.TorchState(model=model, optimizer=optimizer, sampler=sampler)


def refusal(save):
    try:
        save()
    except RuntimeError as error:
        return str(error)
    return None


@en.elastic.run
def train(state):
    accelerator = ElasticAccelerator(cpu=True, gradient_accumulation_steps=BATCHES)
    loader = DataLoader(data, BATCH, sampler=sampler)
    model, optimizer, loader = accelerator.prepare(state.model, state.optimizer, loader)
    refusals = []
    for number, (x, y) in enumerate(loader):
        with accelerator.accumulate(model):
            accelerator.backward(torch.nn.functional.mse_loss(model(x), y))
            optimizer.step()
            optimizer.zero_grad()
        sampler.record_batch(number, BATCH)
        refusals.append([refusal(state.commit), refusal(state.save)])
    return refusals


print(json.dumps({"refusals": train(state)}), flush=True)
