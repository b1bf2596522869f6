"""A state that pickle does not take: from the beginning, at a commit, or at the end. An argument says when."""

import sys
import threading

import elastic_node as en

when = sys.argv[1]
en.init()
state = en.elastic.ObjectState(step=0, guard=threading.Lock() if when == "begin" else None)


@en.elastic.run
def train(state):
    state.step = 1
    state.guard = threading.Lock()
    if when == "commit":
        state.commit()


train(state)
