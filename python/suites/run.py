"""Runs peers' own test suites on this package, and prints what passes: `cargo xtask suites` calls it.

    python run.py horovod [--ranks 2 4] [--tests test_a test_b] [--source FOLDER]
    python run.py torch [--ranks 2 3 4] [--tests test_a test_b]

Horovod's `test/parallel/test_torch.py` comes from the tag v0.28.1 of its repository, of which `--source` names a checkout;
without it, git fetches one. Nothing of it is kept in this repository. torch's tests of `torch.distributed` lie in its wheel; they
run on gloo and on this package, and what gloo does not pass is left out of the list.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Dict, List, Tuple

import torch_suite

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
WORK = ROOT / "target" / "python" / "suites"

HOROVOD = "https://github.com/horovod/horovod.git"
HOROVOD_TAG = "v0.28.1"

#: Most time for all tests of one suite on one number of ranks, in seconds.
SUITE_S = 3600

#: From best to worst: a test's outcome is that of its worst rank.
OUTCOMES = ["passed", "skipped", "failed", "hangs"]

Results = Dict[str, Tuple[str, str]]


def binary() -> str:
    return os.environ.get("ELASTIC_NODE_BINARY", str(ROOT / "target" / "debug" / "elastic-node"))


def horovod_source(source: str) -> Path:
    """The folder with Horovod's tests, whose import is changed."""
    checkout = WORK / "horovod"
    if source:
        shutil.rmtree(checkout, ignore_errors=True)
        shutil.copytree(Path(source) / "test", checkout / "test")
    elif not (checkout / "test").exists():
        WORK.mkdir(parents=True, exist_ok=True)
        clone = ["git", "clone", "--quiet", "--depth", "1", "--branch", HOROVOD_TAG, HOROVOD, str(checkout)]
        subprocess.run(clone, check=True)
    tests = checkout / "test" / "parallel"
    text = (tests / "test_torch.py").read_text()
    changed = text.replace("import horovod.torch as hvd", "import elastic_node.torch as hvd")
    (tests / "test_elastic_node.py").write_text(changed)
    return tests


def run_job(tests: Path, ranks: int, selected: List[str], skipped: List[str]) -> Results:
    """One job: results until its end, or until a test hangs."""
    results = WORK / "results"
    shutil.rmtree(results, ignore_errors=True)
    results.mkdir(parents=True)
    pytest = [sys.executable, "-m", "pytest", "-q", "-p", "horovod_plugin", "-p", "no:cacheprovider"]
    pytest += [arg for test in skipped for arg in ("--deselect", test)]
    targets = [f"test_elastic_node.py::TorchTests::{test}" for test in selected] or ["test_elastic_node.py"]
    command = [binary(), "run", "--np", str(ranks), "--max-restarts", "0", "--", *pytest, *targets]
    environment = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": os.pathsep.join([str(HERE), os.environ.get("PYTHONPATH", "")]),
        "SUITE_RESULTS": str(results),
    }
    with open(WORK / f"output-{ranks}.txt", "a") as output:
        subprocess.run(
            command, cwd=tests, env=environment, stdout=output, stderr=subprocess.STDOUT, timeout=SUITE_S
        )
    worst: Results = {}
    for file in sorted(results.glob("*.jsonl")):
        for line in file.read_text().splitlines():
            result = json.loads(line)
            before = worst.get(result["nodeid"], ("passed", ""))
            if OUTCOMES.index(result["outcome"]) >= OUTCOMES.index(before[0]):
                worst[result["nodeid"]] = result["outcome"], result["why"] or before[1]
    return worst


def run_suite(tests: Path, ranks: int, selected: List[str]) -> Results:
    """All tests; a job that a test has ended is followed by one with the tests that are left."""
    all_results: Results = {}
    (WORK / f"output-{ranks}.txt").unlink(missing_ok=True)
    while True:
        results = run_job(tests, ranks, selected, list(all_results))
        new = {test: result for test, result in results.items() if test not in all_results}
        all_results.update(new)
        if not any(outcome == "hangs" for outcome, _ in new.values()):
            return all_results


def run_torch(ranks: int, selected: List[str]) -> None:
    """Torch's tests on gloo and on this package; prints where they differ."""
    of_gloo = torch_suite.run(ranks, WORK, selected, ours=False)
    of_ours = torch_suite.run(ranks, WORK, selected, ours=True)
    for test, (outcome, why) in sorted(of_ours.items()):
        if outcome != of_gloo[test][0]:
            print(f"{ranks} ranks  {outcome:8} {test} (gloo: {of_gloo[test][0]})  {why.splitlines()[0] if why else ''}")
    for name, results in (("gloo", of_gloo), ("elastic", of_ours)):
        counts = {outcome: sum(found == outcome for found, _ in results.values()) for outcome in OUTCOMES[:3]}
        print(f"{ranks} ranks, {name}: " + ", ".join(f"{count} {outcome}" for outcome, count in counts.items()))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("suite", choices=["horovod", "torch"])
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--tests", nargs="+", default=[])
    parser.add_argument("--source", default="")
    arguments = parser.parse_args()
    if arguments.suite == "torch":
        for ranks in arguments.ranks:
            run_torch(ranks, arguments.tests)
        return 0
    tests = horovod_source(arguments.source)
    for ranks in arguments.ranks:
        results = run_suite(tests, ranks, arguments.tests)
        counts = {outcome: sum(found == outcome for found, _ in results.values()) for outcome in OUTCOMES}
        for test, (outcome, why) in sorted(results.items()):
            if outcome != "passed":
                print(f"{ranks} ranks  {outcome:8} {test.rpartition('::')[2]}  {why.splitlines()[0] if why else ''}")
        print(f"{ranks} ranks: " + ", ".join(f"{count} {outcome}" for outcome, count in counts.items()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
