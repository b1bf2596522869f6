"""Rank 1 raises an error of its own."""

import elastic_node as en

en.init()


@en.elastic.run
def train(state):
    en.barrier()
    if en.rank() == 1:
        raise ArithmeticError("the loss is not finite")
    en.barrier()


train(en.elastic.ObjectState())
