"""A script of stock torch by restart, with collectives over gloo. In the tenth step rank 1 stands still, in the way that is named,
and the others wait for it in a collective, until the driver has named it. They train on until the driver has seen that.

Without DDP: under it, torch 2.15 alone aborts at its end in one run of six."""

import sys
import threading
import time

import torch
import torch.distributed as dist

from job_events import events


def likely():
    """The hangs that the driver takes to be likely. It may name merely possible ones while programs start."""
    return [event for event in events("worker_stalled") if event["grounds"]["sureness"] == "likely"]


def has_ended():
    named = {event["worker"] for event in likely()}
    return any(event["worker"] in named for event in events("stall_ended"))


def waits():
    """As the others do: in the kernel, for another thread."""
    goes_on = threading.Event()

    def watch():
        while not likely():
            time.sleep(1.0)
        goes_on.set()

    threading.Thread(target=watch, daemon=True).start()
    goes_on.wait()


dist.init_process_group("gloo")
step, is_over = 0, torch.zeros(1)
while not is_over:
    if step == 10 and dist.get_rank() == 1:
        globals()[sys.argv[1]]()
    dist.all_reduce(torch.ones(8))
    step += 1
    if step > 20:
        time.sleep(0.1)
        is_over[0] = has_ended()
        dist.broadcast(is_over, 0)
dist.destroy_process_group()
