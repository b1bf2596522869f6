"""A worker dies before it comes to a group of some ranks, while another one waits for it there: "new_group", "mesh" or "pair".
The group, and one of the newcomer and a survivor, form in the next generation, twice."""

import json
import os
import signal
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

import elastic_node.torch as en

ONCE = Path(os.environ["CONTROL"]) / "killed"

en.init()
state = en.elastic.TorchState(step=0)
process = {"aborted": None, "waited_s": None}


def member():
    """A group of ranks 0 and 1, by the way that is tested."""
    if sys.argv[1] == "mesh":
        return init_device_mesh("cpu", (en.size() // 2, 2), mesh_dim_names=("outer", "inner")).get_group("inner")
    return dist.new_group([0, 1])


@en.elastic.run
def train(state):
    dist.init_process_group("elastic")
    dist.barrier()
    if en.rank() == 1 and not ONCE.exists():
        time.sleep(1)
        ONCE.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    began = time.monotonic()
    try:
        groups = [member(), member()]
    except en.elastic.CollectiveError as error:
        process.update(aborted=str(error), waited_s=time.monotonic() - began)
        raise
    while state.step < 4:
        total = torch.ones(1)
        dist.all_reduce(total)
        for group in groups:
            if dist.get_rank(group) >= 0:
                dist.all_reduce(total, group=group)
        # Between a survivor and a newcomer.
        if en.rank() == 0:
            dist.send(total, 1)
        elif en.rank() == 1:
            dist.recv(total, 0)
        state.step += 1
        state.commit()


train(state)
print(json.dumps({"rank": en.rank(), "step": state.step, **process}), flush=True)
