"""DDP with batch normalisation, whose statistics differ between ranks, up to the step of the first argument: what each rank begins
with, and ends with. For `test_checkpoints`."""

import json
import sys

import elastic_node.torch as en
import torch
from torch.nn.parallel import DistributedDataParallel

en.init()
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
state = en.elastic.TorchState(model=model, optimizer=optimizer, step=0)
began = []


@en.elastic.run
def train(state: en.elastic.TorchState) -> None:
    began.append((state.step, model[1].running_mean.tolist()))
    en.init_process_group()
    replica = DistributedDataParallel(state.model)
    while state.step < int(sys.argv[1]):
        optimizer.zero_grad()
        of_rank = torch.Generator().manual_seed(1000 * en.rank() + state.step)
        replica(torch.randn(8, 4, generator=of_rank)).square().sum().backward()
        optimizer.step()
        state.step += 1
        state.commit()


train(state)
step, mean = began[0]
end = {"rank": en.rank(), "began_at": step, "began_with": mean, "mean": model[1].running_mean.tolist()}
print(json.dumps(end), flush=True)
