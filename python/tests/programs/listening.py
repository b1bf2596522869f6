"""Tells on which addresses a rank listens, after all that makes groups: DDP, a new group, a split, messages. An argument says how
it meets the others: "by-restart" as a script of stock torch, "in-process" within `elastic.run`."""

import json
import os
import socket
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

#: `st` of a socket that listens (/proc/net/tcp).
LISTENS = "0A"


def listening():
    """The addresses in the kernel's words: 0100007F is the loopback, zeros are all interfaces."""
    own = {os.readlink(f"/proc/self/fd/{name}") for name in os.listdir("/proc/self/fd") if _is_open(name)}
    found = []
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/self/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == LISTENS and f"socket:[{fields[9]}]" in own:
                found.append(fields[1].partition(":")[0])
    return sorted(found)


def _is_open(name):
    return os.path.lexists(f"/proc/self/fd/{name}")


def use_groups():
    dist.init_process_group("elastic")
    rank, size = dist.get_rank(), dist.get_world_size()
    seen = [*listening()]
    model = DistributedDataParallel(torch.nn.Linear(4, 1))
    model(torch.ones(1, 4)).sum().backward()
    pair = dist.new_group([0, 1])
    if rank < 2:
        dist.all_reduce(torch.ones(1), group=pair)
        got = torch.zeros(1)
        dist.send(torch.ones(1), 1) if rank == 0 else dist.recv(got, 0)
    part = dist.split_group(split_ranks=[list(range(size))])
    dist.all_reduce(torch.ones(1), group=part)
    seen += listening()
    dist.barrier()
    print(json.dumps({"rank": rank, "listens": seen, "groups": type(part).__name__}), flush=True)


with socket.create_server(("", 0)):
    assert listening() == ["00000000"], "it would be seen"

if sys.argv[1] == "by-restart":
    use_groups()
    dist.destroy_process_group()
else:
    import elastic_node.torch as en

    en.init()

    @en.elastic.run
    def train(state):
        use_groups()

    train(en.elastic.ObjectState())
