"""A training whose program does not let the error of a collective pass: it raises one of its own. Rank 1 dies by kill -9, once. The
job's programs begin again after that."""

import numpy as np
from dying import die_once

import elastic_node as en

en.init()
state = en.elastic.ObjectState(step=0)


@en.elastic.run
def train(state):
    while state.step < 8:
        if state.step == 4:
            die_once(1)
        try:
            en.allreduce(np.ones(2))
        except en.elastic.CollectiveError:
            raise RuntimeError("the mean of the loss is not known") from None
        state.step += 1
        state.commit()


train(state)
