"""Real frameworks that lose a rank by kill -9: whether they go on with the same losses, and after what time. `cargo xtask suites`
calls it; docs/compatibility.md has the table.

    python matrix.py [--frameworks lightning transformers] [--launchers torchrun restart in-process]

For each framework and launcher `matrix_job.py` trains on two ranks twice: undisturbed, and with rank 1 killed in mid-training.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Dict, List, Tuple

from matrix_job import KILL_AT

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
WORK = ROOT / "target" / "python" / "suites" / "matrix"

FRAMEWORKS = ["transformers", "accelerate", "lightning", "deepspeed", "jax"]

#: torchrun is gloo under torch's launcher; "restart" is the same script under ours. The others are `elastic_node.integrations`: what
#: is left waits for a rank in the place of the lost one, or goes on ("survivors").
LAUNCHERS = ["torchrun", "restart", "in-process", "survivors"]

#: Frameworks that are elastic by restart alone, with the launchers that start them. JAX finds its ranks under ours; torchrun leaves it no
#: port for its coordinator.
ONLY_BY_RESTART = {"deepspeed": {"torchrun", "restart"}, "jax": {"restart"}}

#: Most time for one training, in seconds.
JOB_S = 600

RANKS = 2


def command(framework: str, launcher: str) -> List[str]:
    job = [str(HERE / "matrix_job.py"), framework]
    ours = os.environ.get("ELASTIC_NODE_BINARY", str(ROOT / "target" / "debug" / "elastic-node"))
    if launcher == "torchrun":
        torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(RANKS)]
        return [*torchrun, "--max-restarts", "1", *job, "restart"]
    if launcher == "restart":
        return [ours, "run", "--nproc-per-node", str(RANKS), "--max-restarts", "1", *job, "restart"]
    fewest = "1" if launcher == "survivors" else str(RANKS)
    return [ours, "run", "--np", str(RANKS), "--min-np", fewest, "--", sys.executable, "-u", *job, "in-process"]


def train(framework: str, launcher: str, kills: bool) -> Tuple[Dict[int, float], float]:
    """Losses by step, as they were at last; and the seconds from the kill to the next step."""
    folder = WORK / f"{framework}-{launcher}-{'killed' if kills else 'undisturbed'}"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    if kills:
        (folder / "kill").touch()
    environment = {**os.environ, "MATRIX_FOLDER": str(folder), "OMP_NUM_THREADS": "1", "PYTHON_EXEC": sys.executable}
    if launcher == "torchrun":
        # A store of its own for each attempt. In torch 2.15 the second attempt may else read the addresses of the first one's ranks.
        environment["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"
    with open(folder / "output.txt", "w") as output:
        job = command(framework, launcher)
        done = subprocess.run(job, env=environment, stdout=output, stderr=subprocess.STDOUT, timeout=JOB_S)
    if done.returncode != 0:
        raise RuntimeError(f"{framework} by {launcher} ended with {done.returncode}: see {folder / 'output.txt'}")
    steps = [json.loads(line) for line in (folder / "steps").read_text().splitlines()]
    losses = {step["step"]: step["loss"] for step in steps}
    if not kills:
        return losses, 0.0
    killed = float((folder / "killed").read_text())
    # Rank 0 may still have been at the step before.
    after = [step for step in steps if step["step"] >= KILL_AT or step["process"] != steps[0]["process"]]
    return losses, min(step["time"] for step in after) - killed


def is_installed(framework: str) -> bool:
    try:
        return bool(version(framework))
    except PackageNotFoundError:
        return False


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--frameworks", nargs="+", choices=FRAMEWORKS, default=FRAMEWORKS)
    parser.add_argument("--launchers", nargs="+", choices=LAUNCHERS, default=LAUNCHERS)
    arguments = parser.parse_args()
    failed = 0
    for framework in arguments.frameworks:
        if not is_installed(framework):
            print(f"{framework}: not installed, left out", flush=True)
            continue
        for launcher in arguments.launchers:
            if launcher not in ONLY_BY_RESTART.get(framework, {launcher}):
                continue
            losses, seconds = train(framework, launcher, kills=True)
            told = f"{seconds:.1f} s from the kill to the next step"
            if launcher != "survivors":
                # Fewer ranks have other batches.
                undisturbed, _ = train(framework, launcher, kills=False)
                same = sum(losses.get(step) == loss for step, loss in undisturbed.items())
                failed += losses != undisturbed
                told += f", the same losses in {same} of {len(undisturbed)} steps"
            print(f"{framework} {version(framework)}, {launcher}: {told}", flush=True)
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
