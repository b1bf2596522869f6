"""mypy takes the package and its examples in strict mode, pyright takes the examples, and both refuse programs that use the package
wrongly."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import Any, Dict, List, Set

import pytest

from conftest import PATIENCE_S, ROOT

pytest.importorskip("mypy")

#: Programs of users; a line that mypy must refuse ends with `# refused`.
PROGRAMS = {
    "arrays": """
import numpy
from numpy.typing import NDArray
from typing import Dict, List, Tuple
from typing_extensions import assert_type

import elastic_node as en

en.init()
values: NDArray[numpy.float32] = numpy.zeros(3, numpy.float32)
assert_type(en.allreduce(values), NDArray[numpy.float32])
assert_type(en.allreduce(3), float)
assert_type(en.allreduce(3, op=en.Sum), int)
assert_type(en.grouped_allreduce([values], op=en.Max), List[NDArray[numpy.float32]])
assert_type(en.synchronize(en.broadcast_async(values, 0)), NDArray[numpy.float32])
assert_type(en.alltoall(values), NDArray[numpy.float32])
assert_type(en.alltoall(values, [1, 2]), Tuple[NDArray[numpy.float32], List[int]])
assert_type(en.allgather_object("text"), List[str])
assert_type(en.broadcast_object({"a": 1} if en.rank() == 0 else None), Dict[str, int])
assert_type(en.__version__, str)
en.allreduce(values, compression=en.Compression.fp16)
en.allreduce(values, op="sum")  # refused
en.allreduce("text")  # refused
en.allreduce_(3.0)  # refused
en.grouped_allreduce(values, op=1)  # refused
en.reducescatter(values, en.Sum)  # refused
en.reducescatter(3.0)  # refused
en.broadcast(values)  # refused
en.broadcast_object(1).strip()  # refused
en.allreduce(values, compression="fp16")  # refused
en.init(3)  # refused
en.report(loss=values.mean(), accuracy=0.5, **{"loss/train": 1})
en.report(loss="half")  # refused
en.report(0.5)  # refused
""",
    "elastic": """
import elastic_node as en


class Counting(en.elastic.ObjectState):
    step: int


@en.elastic.run
def train(state: Counting, steps: int) -> float:
    while state.step < steps:
        state.step += 1
        try:
            state.commit()
        except en.HostsUpdatedInterrupt:
            raise
    state.step = "many"  # refused
    state.stop  # refused
    return 0.5


result = train(Counting(step=0), 10)
result + 0.5
result + "0.5"  # refused
train(10)  # refused
train(Counting(step=0), "10")  # refused
""",
    "with_torch": """
import torch
from typing import List, Tuple
from typing_extensions import assert_type

import elastic_node.torch as en

values = torch.zeros(3)
assert_type(en.allreduce(values), torch.Tensor)
assert_type(en.alltoall(values, [1, 2]), Tuple[torch.Tensor, torch.Tensor])
model = torch.nn.Linear(2, 2)
optimizer = en.DistributedOptimizer(torch.optim.SGD(model.parameters()), model.named_parameters(), op=en.Sum)
optimizer.synchronize()
with optimizer.skip_synchronize():
    optimizer.step()
en.broadcast_parameters(model.state_dict(), root_rank=0)
en.elastic.TorchState(model=model, optimizer=optimizer, epoch=0).commit()
en.DistributedOptimizer(model)  # refused
en.DistributedOptimizer(optimizer, op="sum")  # refused
en.elastic.TorchState(model=values)  # refused
en.init_process_group(backend="gloo")  # refused
""",
}


def mypy(*arguments: str, folder: Path) -> "subprocess.CompletedProcess[str]":
    cache = ROOT / "target" / "python" / "mypy"
    command = [sys.executable, "-m", "mypy", "--cache-dir", str(cache), "--show-absolute-path", *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=PATIENCE_S)


def pyright(folder: Path) -> Dict[str, Any]:
    """pyright's report on the programs in a folder, with its defaults. Skips if it cannot run: it fetches itself with
    npm, once."""
    pytest.importorskip("pyright")
    command = [sys.executable, "-m", "pyright", "--outputjson", "--pythonpath", sys.executable, "--project", str(folder)]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=PATIENCE_S)
    try:
        said: Dict[str, Any] = json.loads(done.stdout)
    except ValueError:
        pytest.skip(f"pyright cannot run: {done.stdout}{done.stderr}")
    assert said["summary"]["filesAnalyzed"] == len(list(folder.glob("*.py"))), said
    return said


def needs_newest_torch() -> None:
    """Torch's own annotations differ between its releases: the newest counts."""
    pinned = re.search(r"^torch==([0-9.]+)", (ROOT / "python/tests/requirements-torch.txt").read_text(), re.MULTILINE)
    assert pinned
    try:
        installed = metadata.version("torch").partition("+")[0]
    except metadata.PackageNotFoundError:
        pytest.skip("torch is not installed")
    if installed != pinned[1]:
        pytest.skip(f"types are checked with torch {pinned[1]}, not {installed}")


def test_the_package_and_its_examples_pass_in_strict_mode() -> None:
    needs_newest_torch()
    examples = [str(path) for path in sorted((ROOT / "examples").rglob("*.py"))]
    assert examples
    done = mypy("--config-file", "python/pyproject.toml", "python/elastic_node", *examples, folder=ROOT)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_examples_pass_pyright(tmp_path: Path) -> None:
    needs_newest_torch()
    for example in (ROOT / "examples" / "python").glob("*.py"):
        shutil.copy(example, tmp_path)
    said = pyright(tmp_path)
    assert said["summary"]["errorCount"] == 0, json.dumps(said["generalDiagnostics"], indent=1)


def write_program(folder: Path, name: str) -> Path:
    if name == "with_torch":
        needs_newest_torch()
    program = folder / f"{name}.py"
    program.write_text(PROGRAMS[name])
    return program


def wrong_lines(name: str) -> Set[int]:
    lines: List[str] = PROGRAMS[name].splitlines()
    return {number for number, line in enumerate(lines, 1) if line.endswith("# refused")}


@pytest.mark.parametrize("name", PROGRAMS)
def test_mypy_refuses_the_wrong_lines_of_a_program_and_no_others(tmp_path: Path, name: str) -> None:
    program = write_program(tmp_path, name)
    done = mypy("--config-file=", "--strict", str(program), folder=tmp_path)
    refused: Set[int] = {int(found) for found in re.findall(rf"{name}\.py:(\d+): error:", done.stdout)}
    assert refused == wrong_lines(name), done.stdout + done.stderr
    assert done.returncode == 1


@pytest.mark.parametrize("name", PROGRAMS)
def test_pyright_refuses_the_same_lines_and_no_others(tmp_path: Path, name: str) -> None:
    write_program(tmp_path, name)
    said = pyright(tmp_path)
    errors = [found for found in said["generalDiagnostics"] if found["severity"] == "error"]
    # Lines count from 0 there.
    refused = {found["range"]["start"]["line"] + 1 for found in errors}
    assert refused == wrong_lines(name), json.dumps(errors, indent=1)
