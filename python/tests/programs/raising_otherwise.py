"""A training whose program swallows the error of a collective and fails by one of its own afterwards. Rank 1 dies by kill -9, once.
The survivor goes on from the last commit all the same."""

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
        mean = None
        try:
            mean = en.allreduce(np.ones(2))
        except en.elastic.CollectiveError:
            pass
        if mean is None:
            raise RuntimeError("the mean of the loss is not known")
        state.step += 1
        state.commit()


train(state)
