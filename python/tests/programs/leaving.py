"""A worker that leaves before the end (`left`), or comes when training has ended (`late`), and the code after that in
its program."""

import json
import os
import signal
import sys
import time
from pathlib import Path

import numpy

import elastic_node as en

CASE, CONTROL = sys.argv[1], Path(os.environ["CONTROL"])
LEFT, STARTED, ENDED, CAME = (CONTROL / name for name in ("left", "started", "ended", "came"))


def wait_for(path):
    until = time.monotonic() + 30
    while not path.exists() and time.monotonic() < until:
        time.sleep(0.01)


if LEFT.exists():
    # The one in the place of a killed worker: the driver has it end once training has, and it comes all the same.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    STARTED.touch()
    wait_for(ENDED)
en.init()
if LEFT.exists():
    CAME.touch()
state = en.elastic.ObjectState(step=0)


@en.elastic.run
def train(state):
    while state.step < 10:
        if state.step == 5 and en.rank() == 1 and not LEFT.exists():
            LEFT.touch()
            os.kill(os.getpid(), signal.SIGTERM if CASE == "left" else signal.SIGKILL)
        if state.step == 9 and CASE == "late":
            wait_for(STARTED)
        en.allreduce(numpy.ones(4))
        # The last step waits until the leaver is out: the steps take less time than its signal, and it could train to the end.
        leaving = CASE == "left" and state.step == 9 and en.size() == 3
        state.step += not leaving
        state.commit()


train(state)
ENDED.touch()
if CASE == "late":
    wait_for(CAME)
print(json.dumps({"rank": en.rank(), "step": state.step}), flush=True)
