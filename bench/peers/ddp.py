"""The training program of `bench recovery --mode restart` and of torchrun beside it: unmodified torch, with
DistributedDataParallel over gloo, a checkpoint after each step, and a record of it as `bench/src/record.rs`
reads it."""

import time

began_ns = time.clock_gettime_ns(time.CLOCK_MONOTONIC)

import argparse  # noqa: E402: what is imported is measured
import os  # noqa: E402
import struct  # noqa: E402
from pathlib import Path  # noqa: E402

import torch  # noqa: E402
import torch._dynamo  # noqa: E402, F401: an optimiser's first step imports it; here it counts as what it is
import torch.distributed as dist  # noqa: E402
from torch.nn.parallel import DistributedDataParallel  # noqa: E402

imported_ns = time.clock_gettime_ns(time.CLOCK_MONOTONIC)

arguments = argparse.ArgumentParser(description=__doc__)
arguments.add_argument("--records", type=Path, required=True)
arguments.add_argument("--step-ms", type=float, default=5)
arguments.add_argument("--line-bytes", type=int, default=0, help="bytes of the line that is printed at each step")
options = arguments.parse_args()

dist.init_process_group("gloo")
joined_ns = time.clock_gettime_ns(time.CLOCK_MONOTONIC)
(options.records / f"{os.getpid()}.marks").write_bytes(struct.pack("=QQQ", began_ns, imported_ns, joined_ns))

torch.set_num_threads(1)
# As many numbers as the digits example trains.
model = torch.nn.Sequential(torch.nn.Linear(64, 48), torch.nn.ReLU(), torch.nn.Linear(48, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
step = 0
checkpoint = options.records / "checkpoint.pt"
if checkpoint.exists():
    content = torch.load(checkpoint)
    model.load_state_dict(content["model"])
    optimizer.load_state_dict(content["optimizer"])
    step = content["step"]
replica = DistributedDataParallel(model)
images, labels = torch.rand(16, 64), torch.randint(10, (16,))
rank, size = dist.get_rank(), dist.get_world_size()
generation = int(os.environ["TORCHELASTIC_RESTART_COUNT"]) + 1

with open(options.records / str(os.getpid()), "wb", buffering=0) as records:
    while True:
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(replica(images), labels).backward()
        optimizer.step()
        time.sleep(options.step_ms / 1000)
        step += 1
        if rank == 0:
            content = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
            torch.save(content, checkpoint.with_suffix(".new"))
            os.replace(checkpoint.with_suffix(".new"), checkpoint)
        now_ns = time.clock_gettime_ns(time.CLOCK_MONOTONIC)
        records.write(struct.pack("=QQQII", now_ns, generation, step, size, rank))
        if options.line_bytes:
            print(f"step {step}".ljust(options.line_bytes - 1), flush=True)
