"""torchft beside `bench recovery --mode python`: a lighthouse, replicas that are started again when they die, and in
each the training of `bench/python/worker.py` under torchft's manager. Called with `--replicas`, it is the launcher;
settings are those of torchft's own README and example."""

import argparse
import os
import signal
import struct
import subprocess
import sys
import time
from datetime import timedelta
from pathlib import Path

arguments = argparse.ArgumentParser(description=__doc__)
arguments.add_argument("--records", type=Path, required=True)
arguments.add_argument("--step-ms", type=float, default=5)
arguments.add_argument("--replicas", type=int, help="how many to start")
arguments.add_argument("--replica", help="the name of this one")
options = arguments.parse_args()


def launch() -> None:
    """Starts the lighthouse and the replicas, and those again that end."""
    from torchft.coordination import LighthouseServer

    lighthouse = LighthouseServer(bind="[::]:0", min_replicas=1, join_timeout_ms=10_000, quorum_tick_ms=100)
    environment = {**os.environ, "TORCHFT_LIGHTHOUSE": lighthouse.address()}
    command = [sys.executable, __file__, "--records", str(options.records), "--step-ms", str(options.step_ms)]
    running = {}
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    try:
        while True:
            for number in range(options.replicas):
                if number not in running or running[number].poll() is not None:
                    running[number] = subprocess.Popen([*command, "--replica", str(number)], env=environment)
            time.sleep(0.05)
    finally:
        for process in running.values():
            process.kill()
            process.wait()


def train() -> None:
    import torch
    import torch.distributed as dist
    from torchft import DistributedDataParallel, Manager, Optimizer, ProcessGroupGloo

    torch.set_num_threads(1)
    model = torch.nn.Sequential(torch.nn.Linear(64, 48), torch.nn.ReLU(), torch.nn.Linear(48, 10))
    plain = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)

    def load(content: dict) -> None:
        model.load_state_dict(content["model"])
        plain.load_state_dict(content["optimizer"])

    store = dist.TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
    manager = Manager(
        pg=ProcessGroupGloo(timeout=timedelta(seconds=5)),
        min_replica_size=1,
        load_state_dict=load,
        state_dict=lambda: {"model": model.state_dict(), "optimizer": plain.state_dict()},
        replica_id=f"replica_{options.replica}",
        store_addr="localhost",
        store_port=store.port,
        rank=0,
        world_size=1,
        timeout=timedelta(seconds=30),
    )
    replica = DistributedDataParallel(manager, model)
    optimizer = Optimizer(manager, plain)
    images, labels = torch.rand(16, 64), torch.randint(10, (16,))
    with open(options.records / str(os.getpid()), "wb", buffering=0) as records:
        while True:
            before = manager.current_step()
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(replica(images), labels).backward()
            optimizer.step()
            time.sleep(options.step_ms / 1000)
            rank = manager.participating_rank()
            if manager.current_step() == before or rank is None:
                continue  # The step was given up, or this replica was being brought up to date.
            now_ns = time.clock_gettime_ns(time.CLOCK_MONOTONIC)
            # The quorum's number stands for our generation; there is no public name for it.
            place = manager._quorum_id, manager.current_step(), manager.num_participants(), rank
            records.write(struct.pack("=QQQII", now_ns, *place))


launch() if options.replicas else train()
