"""Reports numbers, and prints what the job's status shows of them once it shows the last ones; and what is refused."""

import json
import math
import os
import subprocess
import time
from pathlib import Path

import numpy

import elastic_node as en

PATIENCE_S = 60

en.init()


def refused(**values):
    try:
        en.report(**values)
    except ValueError as error:
        return str(error)
    return None


def shown():
    """The values that the status shows of each rank."""
    state = str(Path(os.environ["CONTROL"]) / "state")
    command = [os.environ["BINARY"], "status", "--json", "--state-dir", state]
    status = subprocess.run(command, capture_output=True, text=True)
    workers = json.loads(status.stdout)["workers"] if status.returncode == 0 else []
    return {str(it["rank"]): it["reported"] for it in workers if it["rank"] is not None}


def run_until_shown(last):
    until = time.monotonic() + PATIENCE_S
    while time.monotonic() < until:
        now = shown()
        if len(now) == en.size() and all(it.get("loss") == last for it in now.values()):
            return now
        time.sleep(0.05)
    raise TimeoutError(f"the status shows {now}")


@en.elastic.run
def train(state):
    for loss in [4.0, 2.0, 0.125]:
        en.report(loss=loss, rank=en.rank(), **{"loss/half": numpy.float32(loss) / 2})
    if en.rank() == 0:
        wrong = [refused(loss=math.nan), refused(**{"x" * 65: 1}), refused(**{"a\nb": 1})]
        print(json.dumps({"shown": run_until_shown(0.125), "refused": wrong}), flush=True)
    state.commit()


train(en.elastic.ObjectState(step=0))
