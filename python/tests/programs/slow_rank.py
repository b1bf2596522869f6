"""Trains; once, rank 1 has the others wait until the driver has named it."""

import time

import numpy

import elastic_node as en
from job_events import is_named

en.init()
state = en.elastic.ObjectState(step=0)


@en.elastic.run
def train(state):
    while state.step < 20:
        while state.step == 10 and en.rank() == 1 and not is_named(rank=1):
            time.sleep(0.1)
        en.allreduce(numpy.ones(4), op=en.Sum)
        state.step += 1
        state.commit()


train(state)
