"""Trains; once, rank 1 has the others wait until the driver has named it."""

import json
import os
import time
from pathlib import Path

import numpy

import elastic_node as en

EVENTS = Path(os.environ["CONTROL"]) / "state" / "events.jsonl"


def is_named():
    return any(json.loads(line)["kind"] == "worker_stalled" for line in EVENTS.read_text().splitlines())


en.init()
state = en.elastic.ObjectState(step=0)


@en.elastic.run
def train(state):
    while state.step < 20:
        while state.step == 10 and en.rank() == 1 and not is_named():
            time.sleep(0.1)
        en.allreduce(numpy.ones(4), op=en.Sum)
        state.step += 1
        state.commit()


train(state)
