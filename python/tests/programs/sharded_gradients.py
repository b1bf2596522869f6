"""Steps by logical shard, through DDP's hook and through `DistributedOptimizer`, beside the same steps of torch alone. Each
rank prints, for each case, the bits of the weights and by how much they differ from torch's."""

import hashlib
import json

import torch
from torch.nn.functional import mse_loss
from torch.nn.parallel import DistributedDataParallel

import elastic_node.torch as en

SHARDS, STEPS, LIMIT = 4, 4, 1e-3

en.init()
en.init_process_group()
x, y = torch.randn(64, 8, generator=torch.Generator().manual_seed(1)).split([5, 3], 1)


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second, self.last = (torch.nn.Linear(*sizes) for sizes in ((5, 5), (5, 5), (5, 3)))

    def forward(self, data, skips):
        hidden = torch.tanh(self.first(data))
        return self.last(hidden if skips else torch.tanh(self.second(hidden)))


def made(optimizer_class):
    model = Model()
    return model, optimizer_class(model.parameters(), lr=0.05)


def loss_of(model, indices, skips):
    return mse_loss(model(x[indices], skips), y[indices])


def sharded_steps():
    return enumerate(en.ShardedSampler(x, len(x) // STEPS, SHARDS, shuffle=False).steps())


def alone(optimizer_class, skips, none=True, clips=False):
    model, optimizer = made(optimizer_class)
    for step, batch in enumerate(torch.arange(len(x)).chunk(STEPS)):
        optimizer.zero_grad(set_to_none=none)
        for shard, indices in enumerate(batch.chunk(SHARDS)):
            (loss_of(model, indices, skips(step, shard)) / SHARDS).backward()
        if clips:
            torch.nn.utils.clip_grad_norm_(model.parameters(), LIMIT)
        optimizer.step()
    return model


def by_hook(optimizer_class, skips, none=True, **settings):
    model, optimizer = made(optimizer_class)
    replica = DistributedDataParallel(model, **settings)
    hook = en.register_shard_hook(replica, SHARDS)
    for number, step in sharded_steps():
        optimizer.zero_grad(set_to_none=none)
        for shard in hook.passes(step):
            (loss_of(replica, shard.indices, skips(number, shard.number)) * shard.weight).backward()
        optimizer.step()
    return model


def clipped(optimizer_class, skips):
    model, plain = made(optimizer_class)
    optimizer = en.DistributedOptimizer(plain, shards=SHARDS)
    for number, step in sharded_steps():
        optimizer.zero_grad()
        for shard in step.shards:
            (loss_of(model, shard.indices, skips(number, shard.number)) * shard.weight).backward()
        optimizer.synchronize()
        torch.nn.utils.clip_grad_norm_(model.parameters(), LIMIT)
        with optimizer.skip_synchronize():
            optimizer.step()
    return model


def compare(sharded, expected):
    weights, others = (torch.nn.utils.parameters_to_vector(of.parameters()).detach() for of in (sharded, expected))
    return [hashlib.sha256(weights.numpy().tobytes()).hexdigest(), (weights - others).abs().max().item()]


ADAM, SGD = torch.optim.AdamW, torch.optim.SGD
#: Whether a shard of a step leaves out a layer.
SKIPS = {
    "no shard": lambda step, shard: False,
    "the first shard": lambda step, shard: shard == 0,
    "the last shard": lambda step, shard: shard == SHARDS - 1,
    "odd shards": lambda step, shard: shard % 2 == 1,
    "all shards of a step": lambda step, shard: step % 2 == 1,
}
NO_SHARD = SKIPS["no shard"]

said = {}
for name, skips in SKIPS.items():
    for view in (False, True):
        for none in (False, True):
            sharded = by_hook(ADAM, skips, none, find_unused_parameters=True, gradient_as_bucket_view=view)
            key = f"unused in {name}, view {view}, none {none}"
            said[key] = compare(sharded, alone(ADAM, skips, none))
for view in (False, True):
    for none in (False, True):
        sharded = by_hook(SGD, NO_SHARD, none, gradient_as_bucket_view=view)
        said[f"view {view}, none {none}"] = compare(sharded, alone(SGD, NO_SHARD, none))
said["clipped"] = compare(clipped(SGD, NO_SHARD), alone(SGD, NO_SHARD, clips=True))
print(json.dumps(said), flush=True)
