"""Each example runs, by itself and as a job, and learns to read."""

import re
import subprocess
import sys

import pytest

from conftest import PATIENCE_S, ROOT

FOLDER = ROOT / "examples" / "python"
EXAMPLES = [("numpy_digits.py", "numpy"), ("torch_ddp_digits.py", "torch"), ("jax_digits.py", "jax")]


def accuracy(output: str) -> float:
    found = re.search(r"accuracy ([0-9.]+)", output)
    assert found, output
    return float(found[1])


@pytest.mark.parametrize("program, module", EXAMPLES)
def test_it_reads_as_a_job(job, program, module):
    pytest.importorskip(module)
    done = job(program, "--epochs", "5", workers=2, root=FOLDER)
    assert done.code == 0, done.output
    assert accuracy(done.output) > 0.9


def test_it_reads_by_itself():
    done = subprocess.run(
        [sys.executable, str(FOLDER / "numpy_digits.py"), "--epochs", "5"],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )
    assert done.returncode == 0, done.stderr
    assert accuracy(done.stdout) > 0.9
