"""Three rounds over the same data in their own order, each of them begun with `set_epoch(0)`. Rank 1 dies by kill -9 in a step.
Prints how many samples each round has had.

Argument: how many steps of the whole job come before it."""

import json
import sys

from dying import die_once

import elastic_node as en

AFTER, SAMPLES, BATCH, ROUNDS = int(sys.argv[1]), 16, 4, 3

en.init()
sampler = en.elastic.ElasticSampler(range(SAMPLES), shuffle=False)
state = en.elastic.ObjectState(round=0, steps=0, sampler=sampler, seen=[0] * ROUNDS)


@en.elastic.run
def train(state):
    while state.round < ROUNDS:
        state.sampler.set_epoch(0)
        for batch in state.sampler.batches(BATCH):
            seen = sum(en.allgather_object(len(batch.indices)))
            if state.steps == AFTER:
                die_once(1)
            state.seen[state.round] += seen
            state.steps += 1
            state.commit()
        state.round += 1
        state.commit()


train(state)
print(json.dumps({"seen": state.seen}), flush=True)
