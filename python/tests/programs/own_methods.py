"""A state whose class has save, restore and sync of its own, as with Horovod. A rank dies by kill -9 in mid-training. Prints the calls
on each rank, and the counter that `save` keeps."""

import json

import numpy as np
from dying import die_once

import elastic_node as en

STEPS, KILLED_AT = 8, 4
calls = []


class Counted(en.elastic.ObjectState):
    def save(self):
        calls.append("save")
        self.saves += 1
        super().save()

    def restore(self):
        calls.append(f"restore to {self.step}")
        super().restore()

    def sync(self):
        calls.append(f"sync of {self.step}")
        super().sync()

    def reset(self):
        calls.append("reset")
        super().reset()


class Own(en.elastic.State):
    def save(self): ...
    def restore(self): ...
    def sync(self): ...


en.init()
state = Counted(step=0, saves=0)
refusal = None
try:
    Own().capture()
except NotImplementedError as error:
    refusal = str(error)


@en.elastic.run
def train(state):
    while state.step < STEPS:
        en.allreduce(np.ones(1))
        if state.step == KILLED_AT:
            die_once(1)
        state.step += 1
        if state.step % 2 == 0:
            state.commit()


train(state)
print(json.dumps({"rank": en.rank(), "calls": calls, "saves": state.saves, "refusal": refusal}), flush=True)
