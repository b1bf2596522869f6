"""Each example runs, by itself and as a job that loses a worker, and learns to read."""

import re
import subprocess
import sys

import pytest

from conftest import PATIENCE_S, ROOT

FOLDER = ROOT / "examples" / "python"
EXAMPLES = [("numpy_digits.py", "numpy"), ("torch_ddp_digits.py", "torch"), ("jax_digits.py", "jax")]
EPOCHS = 5
#: 1437 images to learn from, 16 at a time on each of two workers.
STEPS_OF_EPOCH = 45


def accuracy(output: str) -> float:
    found = re.search(r"accuracy ([0-9.]+)", output)
    assert found, output
    return float(found[1])


@pytest.mark.parametrize("program, module", EXAMPLES)
def test_it_reads_as_a_job_that_loses_a_worker(job, program, module):
    pytest.importorskip(module)
    arguments = [str(FOLDER / program), "--epochs", str(EPOCHS)]
    done = job("losing_a_worker.py", *arguments, workers=2, flags=["--min-np", "2"])
    assert done.code == 0, done.output
    assert accuracy(done.output) > 0.9
    killed = [event for event in done.kinds("worker_exited") if "signal 9" in str(event)]
    assert len(killed) == 1, done.output
    ends = done.said()
    commits = 1 + EPOCHS * STEPS_OF_EPOCH  # The first is what it begins with.
    assert [said["commits"] for said in ends] == [commits] * 2, "each step counts once"
    assert len({said["content"] for said in ends}) == 1, "G-5: one final state"


def test_it_reads_by_itself():
    done = subprocess.run(
        [sys.executable, str(FOLDER / "numpy_digits.py"), "--epochs", str(EPOCHS)],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )
    assert done.returncode == 0, done.stderr
    assert accuracy(done.stdout) > 0.9
