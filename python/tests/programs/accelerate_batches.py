"""Prepares loaders with accelerate that have an elastic sampler in several places. Prints the samples that all ranks are given, or
the refusal, by what is given."""

import json

import torch
from torch.utils.data import BatchSampler, DataLoader

import elastic_node.torch as en
from elastic_node.integrations.accelerate import ElasticAccelerator

SAMPLES, BATCH = 19, 4
data = torch.arange(SAMPLES)


def outcome(given):
    sampler = en.ElasticDistributedSampler(data, shuffle=False)
    try:
        loader = ElasticAccelerator(cpu=True).prepare(given(sampler))
    except ValueError as error:
        return str(error)
    own = [number for batch in loader for number in batch.tolist()]
    parts = en.allgather_object(own)
    numbers = sorted(sum(parts, []))
    # The sample that is there twice comes last.
    return sorted(set(numbers)) + [number for number in set(numbers) for _ in range(numbers.count(number) - 1)]


def prepared_before(sampler):
    batches = BatchSampler(sampler, BATCH, False)
    ElasticAccelerator(cpu=True).prepare(DataLoader(data, batch_sampler=batches))
    return DataLoader(data, batch_sampler=batches)


@en.elastic.run
def train(state):
    return {
        "sampler": outcome(lambda sampler: DataLoader(data, BATCH, sampler=sampler)),
        "batch sampler": outcome(lambda sampler: DataLoader(data, batch_sampler=BatchSampler(sampler, BATCH, False))),
        "prepared before": outcome(prepared_before),
        "batches": outcome(
            lambda sampler: DataLoader(data, batch_sampler=(batch.indices for batch in sampler.batches(BATCH)))
        ),
        "no batches": outcome(lambda sampler: DataLoader(data, None, sampler=sampler)),
        "batch sampler as sampler": outcome(
            lambda sampler: DataLoader(data, None, sampler=BatchSampler(sampler, BATCH, False))
        ),
        "without": outcome(lambda sampler: DataLoader(data, BATCH)),
    }


en.init()
print(json.dumps(train(en.elastic.ObjectState())), flush=True)
