"""Jobs with durable checkpoints whose every process is killed, for `test_checkpoints` and `test_jax`."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Callable, Dict, List

import pytest
from conftest import PATIENCE_S, PROGRAMS, SAID, binary

#: Commits between two checkpoints.
EVERY = 10


def start(
    folder: Path, checkpoints: Path, workers: int, program: str, *arguments: str, root: Path = PROGRAMS
) -> "subprocess.Popen[str]":
    """A life of a job: a new driver, which knows the checkpoints only."""
    command = [str(binary()), "run", "--np", str(workers), "--state-dir", str(folder / "state")]
    command += ["--checkpoint", str(checkpoints), "--checkpoint-every", str(EVERY), "--"]
    command += [sys.executable, "-u", str(root / program), *arguments]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    folder.mkdir()
    with open(folder / "output", "w") as output:
        return subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, text=True, env=environment)


def end_of(folder: Path, process: "subprocess.Popen[str]") -> List[Dict[str, Any]]:
    """Waits until the job is over; what its workers have said."""
    code = process.wait(timeout=PATIENCE_S)
    output = (folder / "output").read_text()
    assert code == 0, output
    lines = (SAID.match(line) for line in output.splitlines())
    return [json.loads(line[1]) for line in lines if line]


def listed(checkpoints: Path) -> List[Dict[str, Any]]:
    """The checkpoints that are whole, as `elastic-node checkpoint list` shows them."""
    command = [str(binary()), "checkpoint", "list", str(checkpoints), "--json"]
    rows = json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout)
    return [row for row in rows if row["complete"]]


def newest_folder(checkpoints: Path) -> Path:
    """The folder of the newest checkpoint that is whole."""
    return checkpoints / f"step-{max(row['step'] for row in listed(checkpoints)):010}"


def events(folder: Path, kind: str) -> List[Dict[str, Any]]:
    path = folder / "state" / "events.jsonl"
    lines = path.read_text().splitlines() if path.exists() else []
    return [event for event in map(json.loads, lines) if event["kind"] == kind]


def wait_for(what: str, condition: Callable[[], Any]) -> Any:
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        found = condition()
        if found:
            return found
        time.sleep(0.05)
    pytest.fail(f"waited in vain for {what}")


def of_folder(folder: Path) -> List[int]:
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
