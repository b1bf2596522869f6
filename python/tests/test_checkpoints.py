"""A torch job whose every process was killed goes on from its durable checkpoint; others read its weights."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from conftest import PATIENCE_S, PROGRAMS, binary

torch = pytest.importorskip("torch")
EVERY = 10


def start(folder: Path, checkpoints: Path, workers: int) -> "subprocess.Popen[str]":
    command = [str(binary()), "run", "--np", str(workers), "--state-dir", str(folder / "state")]
    command += ["--checkpoint", str(checkpoints), "--checkpoint-every", str(EVERY), "--"]
    command += [sys.executable, "-u", str(PROGRAMS / "torch_checkpoints.py"), str(folder)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    folder.mkdir()
    with open(folder / "output", "w") as output:
        return subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, text=True, env=environment)


def events(folder: Path, kind: str) -> list:
    path = folder / "state" / "events.jsonl"
    lines = path.read_text().splitlines() if path.exists() else []
    return [event for event in map(json.loads, lines) if event["kind"] == kind]


def wait_for(what: str, condition):
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        found = condition()
        if found:
            return found
        time.sleep(0.05)
    pytest.fail(f"waited in vain for {what}")


def of_folder(folder: Path) -> list:
    """The processes whose command line names the folder."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                line = (entry / "cmdline").read_bytes()
                state = (entry / "stat").read_text().rpartition(")")[2].split()[0]
            except OSError:
                continue
            if str(folder).encode() in line and state != "Z":
                found.append(int(entry.name))
    return found


def kill_everything(folder: Path, process: "subprocess.Popen[str]") -> None:
    def killed() -> bool:
        alive = of_folder(folder)
        for pid in alive:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        return not alive

    wait_for("the end of every process", killed)
    process.wait()


def test_a_job_whose_every_process_was_killed_goes_on_with_every_sample_once(tmp_path: Path) -> None:
    checkpoints = tmp_path / "checkpoints"
    first = tmp_path / "first"
    process = start(first, checkpoints, workers=2)
    wait_for("two checkpoints", lambda: len(events(first, "checkpoint_saved")) >= 2)
    kill_everything(first, process)
    saved = events(first, "checkpoint_saved")[-1]["step"]

    second = tmp_path / "second"
    process = start(second, checkpoints, workers=3)
    code = process.wait(timeout=PATIENCE_S)
    output = (second / "output").read_text()
    assert code == 0, output
    (loaded,) = events(second, "checkpoint_loaded")
    assert loaded["step"] >= saved
    said = [json.loads(line[line.index("{") :]) for line in output.splitlines() if '"began_at"' in line]
    assert len(said) == 3, output
    for line in said:
        assert line["exact"], "every sample once an epoch, over both lives"
        assert line["began_at"] > 0

    # Plain safetensors, without this package: the last checkpoint before the end.
    from safetensors.torch import load_file

    listed = subprocess.run(
        [str(binary()), "checkpoint", "list", str(checkpoints), "--json"], stdout=subprocess.PIPE, check=True
    )
    newest = max(row["step"] for row in json.loads(listed.stdout) if row["complete"])
    arrays = {}
    for file in (checkpoints / f"step-{newest:010}").glob("*.safetensors"):
        arrays.update(load_file(str(file)))
    assert arrays["model.layer1.weight"].shape == (2, 3)
    assert arrays["model.layer1.bias"].shape == (2,)
    assert arrays["optimizer.state.0.exp_avg"].shape == (2, 3)
    step = int(arrays["optimizer.state.0.step"].item())
    assert 0 < step <= said[0]["step"]
    # The weights of that step: a training without any interruption has them, too.
    torch.manual_seed(1)
    model = torch.nn.Sequential()
    model.add_module("layer1", torch.nn.Linear(3, 2))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(step):
        optimizer.zero_grad()
        model(torch.ones(1, 3)).sum().backward()
        optimizer.step()
    assert torch.allclose(arrays["model.layer1.weight"], model.layer1.weight.detach(), atol=1e-5)
