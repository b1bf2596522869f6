"""accelerate that survives: one rank dies by kill -9 in the middle of an epoch; the others go on, until another one has come.
Prints what each rank ends with."""

import hashlib
import json
import os

import torch
from accelerate.utils import set_seed
from dying import die_once, until_there_are
from torch.utils.data import DataLoader

import elastic_node.torch as en
from elastic_node import _codec
from elastic_node.integrations.accelerate import ElasticAccelerator

SAMPLES, BATCH, EPOCHS, KILLED_AT = 240, 4, 3, 27
SIZE = int(os.environ["WORLD_SIZE"])


class Rows(torch.utils.data.Dataset):
    """Each row names itself, so that it can be counted."""

    def __len__(self):
        return SAMPLES

    def __getitem__(self, index):
        x = torch.randn(8, generator=torch.Generator().manual_seed(index))
        return index, x, x.sum()


en.init()
set_seed(0)
model = torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
sampler = en.ElasticDistributedSampler(Rows())
state = en.elastic.TorchState(
    model=model, optimizer=optimizer, sampler=sampler, steps=0, seen=[[] for _ in range(EPOCHS)], sizes=[]
)
process = {"calls": 0}


@en.elastic.run
def train(state):
    process["calls"] += 1
    accelerator = ElasticAccelerator(cpu=True, mixed_precision="bf16")
    assert accelerator.num_processes == en.size() and accelerator.process_index == en.rank()
    loader = DataLoader(Rows(), BATCH, sampler=sampler)
    model, optimizer, loader = accelerator.prepare(state.model, state.optimizer, loader)
    while sampler.epoch < EPOCHS:
        for number, (index, x, y) in enumerate(loader):
            loss = (model(x).squeeze(1) - y).square().mean()
            optimizer.zero_grad()
            if state.steps == KILLED_AT:
                die_once(1)
            accelerator.backward(loss)
            optimizer.step()
            for part in en.allgather_object(index.tolist()):
                state.seen[sampler.epoch] += part
            state.sizes.append(accelerator.num_processes)
            state.steps += 1
            sampler.record_batch(number, BATCH)
            state.commit()
        sampler.set_epoch(sampler.epoch + 1)
        if sampler.epoch == EPOCHS - 1:
            until_there_are(SIZE, state)


train(state)
header, buffers = _codec.encode(state.capture())
content = hashlib.sha256(b"".join([header, *buffers])).hexdigest()
told = {"rank": en.rank(), "steps": state.steps, "epochs": sampler.epoch, "sizes": state.sizes, "content": content}
told["seen"] = [len(set(seen)) for seen in state.seen]
print(json.dumps({**told, **process}), flush=True)
