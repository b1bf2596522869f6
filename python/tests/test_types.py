"""mypy takes the package and its examples in strict mode, and refuses programs that use the installed package wrongly."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import List, Set

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
if result is not None:
    result + 0.5
result + 0.5  # refused
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


@pytest.mark.parametrize("name", PROGRAMS)
def test_wrong_lines_of_a_program_are_refused_and_no_others(tmp_path: Path, name: str) -> None:
    if name == "with_torch":
        needs_newest_torch()
    program = tmp_path / f"{name}.py"
    program.write_text(PROGRAMS[name])
    done = mypy("--config-file=", "--strict", str(program), folder=tmp_path)
    lines: List[str] = PROGRAMS[name].splitlines()
    wrong = {number for number, line in enumerate(lines, 1) if line.endswith("# refused")}
    refused: Set[int] = {int(found) for found in re.findall(rf"{name}\.py:(\d+): error:", done.stdout)}
    assert refused == wrong, done.stdout + done.stderr
    assert done.returncode == 1
