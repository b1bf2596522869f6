"""Runs torch's own tests of `torch.distributed` (`torch_distributed.py`), and reads what passed. Called by `run.py`, and by
`python/tests/test_torch_suite.py`."""

from __future__ import annotations

import os
import subprocess
import sys
import xml.etree.ElementTree as xml
from pathlib import Path
from typing import Dict, List, Tuple

HERE = Path(__file__).resolve().parent

#: Time after which a test counts as failed, in seconds.
TEST_S = 120

#: Most time for all tests on one number of ranks, in seconds.
SUITE_S = 3600

#: Outcome and reason by the name of a test.
Results = Dict[str, Tuple[str, str]]


def run(ranks: int, work: Path, selected: List[str], ours: bool) -> Results:
    """The tests that gloo's gates let through, on gloo, or on this package under that name.

    Args:
        ranks: processes of each test.
        work: a folder for output.
        selected: names of tests; all, if there are none.
        ours: whether "gloo" is this package.
    """
    work.mkdir(parents=True, exist_ok=True)
    name = f"torch-{'elastic' if ours else 'gloo'}-{ranks}"
    report = work / f"{name}.xml"
    report.unlink(missing_ok=True)
    file = HERE / "torch_distributed.py"
    targets = [f"{file}::TestDistributed::{test}" for test in selected] or [str(file)]
    pytest = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--override-ini", "python_files=*.py"]
    environment = {
        **os.environ,
        "BACKEND": "gloo",
        "ELASTIC_BACKEND_FOR": "gloo" if ours else "",
        "WORLD_SIZE": str(ranks),
        "OMP_NUM_THREADS": "1",
        "DISTRIBUTED_TESTS_DEFAULT_TIMEOUT": str(TEST_S),
    }
    with open(work / f"{name}.txt", "w") as output:
        command = [*pytest, f"--junitxml={report}", *targets]
        subprocess.run(
            command, cwd=work, env=environment, stdout=output, stderr=subprocess.STDOUT, timeout=SUITE_S
        )
    if not report.exists():
        raise RuntimeError(f"the tests did not run: see {work / name}.txt")
    return dict(_result(case) for case in xml.parse(report).iter("testcase"))


def _result(case: xml.Element) -> Tuple[str, Tuple[str, str]]:
    for kind, outcome in (("failure", "failed"), ("error", "failed"), ("skipped", "skipped")):
        found = case.find(kind)
        if found is not None:
            return case.get("name", ""), (outcome, found.get("message", ""))
    return case.get("name", ""), ("passed", "")
