"""A program of which a later version keeps more in its state: a sampler, an average that every rank begins otherwise, and a number.
In that version a rank dies by kill -9 in mid-training. Prints what each rank has at the end.

Arguments: the version, 1 or 2."""

import json
import sys

import numpy as np
from dying import die_once

import elastic_node as en

SAMPLES, BATCH = 60, 5
IS_LATER = sys.argv[1] == "2"


class Average:
    def __init__(self, value):
        self.value = value

    def state_dict(self):
        return {"value": self.value}

    def load_state_dict(self, state_dict):
        self.value = state_dict["value"]


en.init()
sampler, average = en.elastic.ElasticSampler(range(SAMPLES)), Average(float(en.rank() + 1))
added = {"sampler": sampler, "average": average, "best": float(en.rank())} if IS_LATER else {}
state = en.elastic.ObjectState(steps=0, seen=np.zeros(SAMPLES), **added)


@en.elastic.run
def train(state):
    if not IS_LATER:
        while state.steps < 4:
            state.steps += 1
            en.allreduce(np.ones(1))
            state.commit()
        return
    for number, batch in enumerate(sampler.batches(BATCH)):
        if number == 3:
            die_once(1)
        mine = np.zeros(SAMPLES)
        mine[batch.indices] = 1
        state.seen = state.seen + en.allreduce(mine, op=en.Sum)
        # A commit for every second step: the others of a broken generation are made again.
        average.value /= 2
        state.steps += 1
        if state.steps % 2 == 0 or not sampler.remaining_indices:
            state.commit()


train(state)
end = {"steps": state.steps, "seen": state.seen.tolist()}
if IS_LATER:
    end.update(average=average.value * 2.0**state.steps, best=state.best)
print(json.dumps(end), flush=True)
