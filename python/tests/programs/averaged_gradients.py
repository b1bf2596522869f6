"""`DistributedOptimizer` on several ranks against one process that averages all ranks' gradients itself."""

import json
import os

import torch

import elastic_node.torch as en
from elastic_node.torch import _buckets

STEPS, BATCH = 5, 8
DEVICE = os.environ.get("DEVICE", "cpu")
torch.set_default_device(DEVICE)

# Some dozen buckets, and one parameter that is larger than a bucket.
_buckets.BUCKET_BYTES = 2048


def make():
    torch.manual_seed(4)
    layers = [layer for width in (48, 20, 20) for layer in (torch.nn.LazyLinear(width), torch.nn.Tanh())]
    model = torch.nn.Sequential(*layers, torch.nn.Linear(20, 3))
    model(torch.zeros(1, 16))
    # No gradient on this rank or that: it counts as zero.
    model.unused = torch.nn.Parameter(torch.ones(5))
    return model, torch.optim.Adam(model.parameters(), lr=0.01)


def loss_of(model, rank, step):
    x = torch.randn(BATCH, 16, generator=torch.Generator(DEVICE).manual_seed(1000 * step + rank))
    loss = (model(x) ** 2).mean()
    return loss + model.unused.sum() if rank == 0 else loss


en.init()
en.barrier()
rank, size = en.rank(), en.size()
(model, plain), (alone, of_alone) = make(), make()
optimizer = en.DistributedOptimizer(plain)
reducer = optimizer._reducer
launched_in_backward = []
for step in range(STEPS):
    optimizer.zero_grad()
    loss_of(model, rank, step).backward()
    launched_in_backward.append(reducer.launched)
    optimizer.step()

    of_alone.zero_grad()
    for other in range(size):
        (loss_of(alone, other, step) / size).backward()
    of_alone.step()

for (name, ours), due in zip(model.named_parameters(), alone.parameters()):
    torch.testing.assert_close(ours, due, rtol=1e-5, atol=1e-6, msg=f"{name} differs")
checksums = en.allgather_object([parameter.sum().item() for parameter in model.parameters()])
said = {
    "rank": rank,
    "buckets": len(reducer.buckets),
    "launched_in_backward": launched_in_backward,
    "is_same_on_all": all(checksum == checksums[0] for checksum in checksums),
}
print(json.dumps(said), flush=True)
en.shutdown()
