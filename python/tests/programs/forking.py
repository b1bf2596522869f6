"""Rank 1 forks at step 5; its child ends in one of several ways. A child that ends has no part in the job."""

import json
import os
import sys

import numpy

import elastic_node as en

HOW = sys.argv[1]

en.init()
state = en.elastic.ObjectState(step=0)
WORKER = os.getpid()


@en.elastic.run
def train(state):
    while state.step < 10:
        total = en.allreduce(numpy.ones(1), op=en.Sum)
        assert total[0] == 2, total
        if state.step == 5 and en.rank() == 1:
            child = os.fork()
            if child == 0:
                if HOW == "exit":
                    # The interpreter ends in order, with all its finalisers.
                    sys.exit(3)
                if HOW == "raise":
                    raise ArithmeticError("in the child")
                if HOW == "commit":
                    state.commit()
                return
            _, status = os.waitpid(child, 0)
            print(json.dumps({"child": os.waitstatus_to_exitcode(status)}), flush=True)
        state.step += 1
        state.commit()


try:
    train(state)
except en.CollectiveError as error:
    assert os.getpid() != WORKER and "forked" in str(error), error
    sys.exit(4)
print(json.dumps({"rank": en.rank(), "generation": en.generation()}), flush=True)
