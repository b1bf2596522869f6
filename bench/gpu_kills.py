"""Two ranks that share one GPU, of which one is killed again and again (SIGKILL); the job must end well all the same. `bench/gpu.sh` calls
it. Prints, as JSON, each reset's time as `elastic-node history` tells it, and the GPU's used memory before and after.

Usage: gpu_kills.py ELASTIC_NODE PROGRAM KILLS
"""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

node, program, kills = sys.argv[1], sys.argv[2], int(sys.argv[3])
#: Most time for two workers to train, from the start or from the death of one of them, in seconds.
PATIENCE_S = 60


def used_mib():
    """Memory of the first GPU that is in use; None without nvidia-smi."""
    command = ["nvidia-smi", "--id=0", "--query-gpu=memory.used", "--format=csv,noheader,nounits"]
    try:
        return int(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    except (OSError, subprocess.CalledProcessError):
        return None


def status(state):
    address = state / "address"
    if not address.exists():
        return {}
    command = [node, "status", "--json", "--driver", address.read_text().strip(), "--state-dir", str(state)]
    said = subprocess.run(command, capture_output=True, text=True)
    return json.loads(said.stdout) if said.returncode == 0 else {}


def training(job, state, since):
    """The process ids of two workers that have trained beyond a step, and the step."""
    due, found = time.monotonic() + PATIENCE_S, {}
    while time.monotonic() < due and job.poll() is None:
        found = status(state)
        pids = [it["pid"] for it in found.get("workers", []) if it["step"] > since and it["pid"]]
        if found.get("world_size") == 2 and len(pids) == 2:
            return pids, max(it["step"] for it in found["workers"])
        time.sleep(0.1)
    sys.exit(f"two workers did not train within {PATIENCE_S} s: {json.dumps(found)}")


with tempfile.TemporaryDirectory() as folder:
    state = Path(folder) / "state"
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "0", "NCCL_MULTI_RANK_GPU_ENABLE": "1"}
    command = [node, "run", "--np", "2", "--min-np", "1", "--backend", "nccl", "--state-dir", str(state)]
    command += ["--max-restarts", str(kills), "--", program, "--epochs", "1000", "--step-ms", "5"]
    with subprocess.Popen(command, env=environment) as job:
        memory, step = [], 0
        for number in range(kills):
            pids, step = training(job, state, step)
            memory.append(used_mib())
            # In turns: the survivor of one death is the next victim.
            os.kill(pids[number % 2], signal.SIGKILL)
        _, step = training(job, state, step)
        memory.append(used_mib())
        # SIGINT ends the job after the last commit.
        job.send_signal(signal.SIGINT)
        try:
            job.wait(timeout=PATIENCE_S)
        except subprocess.TimeoutExpired:
            job.kill()
            sys.exit("the job did not end")
    history = [node, "history", "--json", "--state-dir", str(state)]
    print(subprocess.run(history, check=True, capture_output=True, text=True).stdout)
    print(json.dumps({"code": job.returncode, "used_mib": memory, "step": step}))
