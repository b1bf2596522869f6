"""How the ranks of stock torchrun meet: "late", one of them does not come to a group; "again", after the groups were destroyed
other ranks have one of a former name."""

import sys
from datetime import timedelta

import torch
import torch.distributed as dist


def late():
    if dist.get_rank() != 2:
        try:
            dist.new_group([0, 1, 2], timeout=timedelta(seconds=2))
        except dist.DistStoreError as error:
            assert "rank 2 of a new group of 3 did not come within 2.0 s" in str(error), error
        else:
            raise AssertionError("the group has formed without rank 2")
    dist.barrier()


def again():
    for members in ([0, 1], [0, 1, 2], [1, 2], [0, 2]):
        group = dist.new_group(members, timeout=timedelta(seconds=30))
        if dist.get_rank() in members:
            total = torch.ones(1)
            dist.all_reduce(total, group=group)
            assert total.item() == len(members)
            # Messages of two ranks meet by themselves.
            if dist.get_rank() == members[0]:
                dist.send(total, group=group, group_dst=1)
            elif dist.get_rank() == members[1]:
                dist.recv(total, group=group, group_src=0)
        dist.barrier()
        dist.destroy_process_group()
        dist.init_process_group("elastic")


dist.init_process_group("elastic")
{"again": again, "late": late}[sys.argv[1]]()
print("well", flush=True)
