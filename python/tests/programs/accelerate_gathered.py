"""Evaluates data sets of several lengths with accelerate over an elastic sampler, from the beginning and from a sample in the middle.
Prints the samples of each that `gather_for_metrics` has given, as tensors and as objects."""

import json

import torch
from torch.utils.data import DataLoader

import elastic_node.torch as en
from elastic_node.integrations.accelerate import ElasticAccelerator

BATCH = 4


def gathered(length, first, drop_last):
    data = torch.arange(length)
    sampler = en.ElasticDistributedSampler(data, shuffle=False)
    sampler.record_batch(0, first // en.size())  # As many on each rank.
    loader = accelerator.prepare(DataLoader(data, BATCH, sampler=sampler, drop_last=drop_last))
    numbers, objects = [], []
    for batch in loader:
        numbers += accelerator.gather_for_metrics({"number": batch})["number"].tolist()
        objects += accelerator.gather_for_metrics([str(number) for number in batch.tolist()])
    assert [str(number) for number in numbers] == objects
    return {"length": length, "first": first, "drop_last": drop_last, "numbers": sorted(numbers)}


@en.elastic.run
def evaluate(state):
    global accelerator
    accelerator = ElasticAccelerator(cpu=True)
    return [gathered(length, first, drop) for length in (50, 52, 53, 60) for first in (0, 12) for drop in (False, True)]


en.init()
print(json.dumps({"passes": evaluate(en.elastic.ObjectState())}), flush=True)
