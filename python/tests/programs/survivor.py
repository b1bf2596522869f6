"""Trains, and loses the worker that finds itself to be rank 1 first, by kill -9 in the middle of a step."""

import json
import os
import signal
from pathlib import Path

import numpy

import elastic_node as en

ONCE = Path(os.environ["CONTROL"]) / "killed"
SAMPLES, STEPS_BEFORE = 1200, 20

en.init()
state = en.elastic.ObjectState(
    weights=numpy.zeros(1000), step=0, sampler=en.elastic.ElasticSampler(range(SAMPLES)), seen=[], resets=0
)
process = {"calls": 0}


def told():
    state.resets += 1


state.register_reset_callbacks([told])


@en.elastic.run
def train(state):
    process["calls"] += 1
    for batch in state.sampler.batches(4):
        if state.step == STEPS_BEFORE and en.rank() == 1 and not ONCE.exists():
            ONCE.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        state.weights += en.allreduce(numpy.ones(1000), op=en.Sum) / en.size()
        state.seen += [index for part in en.allgather_object(batch.indices) for index in part]
        state.step += 1
        state.commit()
    return en.size()


size = train(state)
print(
    json.dumps(
        {
            "rank": en.rank(),
            "size": size,
            "steps": state.step,
            "weight": state.weights[0],
            "exact": sorted(state.seen) == list(range(SAMPLES)),
            "calls": process["calls"],
            "resets": state.resets,
        }
    ),
    flush=True,
)
