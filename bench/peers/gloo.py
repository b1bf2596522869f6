"""Gloo's side of `bench`: one process per rank, over torch.distributed.

The environment is torchrun's (RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT). Commands come on stdin, one a
line: `COLLECTIVE BYTES CALLS`. Rank 0 answers each with one line of nanoseconds on stdout.
"""

import os
import sys
import time

import torch
import torch.distributed as dist

WARM_UP = 2


def call_of(collective, elements, world):
    """The call that is measured, and the number of operations in one call of it."""
    data = torch.zeros(elements, dtype=torch.float32)
    if collective == "allreduce":
        return lambda: dist.all_reduce(data), 1
    if collective == "allgather":
        gathered = [torch.zeros_like(data) for _ in range(world)]
        return lambda: dist.all_gather(gathered, data), 1
    if collective == "broadcast":
        # Each rank is the root once, so that none runs ahead of the others.
        return lambda: [dist.broadcast(data, root) for root in range(world)], world
    if collective == "form":
        # torch connects a new group beside the old ones. It keeps them all until the end.
        return lambda: dist.new_group(backend="gloo"), 1
    raise ValueError(f"there is no {collective}")


def main():
    # Gloo itself writes to stdout: that goes to stderr, and the results where stdout was.
    results = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    for line in sys.stdin:
        collective, size, calls = line.split()
        call, divisor = call_of(collective, int(size) // 4, world)
        for _ in range(WARM_UP):
            call()
        times = []
        for _ in range(int(calls)):
            before = time.perf_counter_ns()
            call()
            times.append((time.perf_counter_ns() - before) // divisor)
        if rank == 0:
            print(*times, file=results, flush=True)
    # The interpreter's own end would wait for the group's threads.
    os._exit(0)


if __name__ == "__main__":
    main()
