"""Jobs with durable checkpoints whose every process is killed, for `test_checkpoints`, `test_jax` and `test_disturbed`."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Callable, Dict, List

import pytest
from conftest import PATIENCE_S, PROGRAMS, SAID, binary

#: Commits between two checkpoints.
EVERY = 10

#: The variable that all processes of a life with hosts of its own have, with its folder.
MARK = "ELASTIC_TEST_LIFE"


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
    """Waits until the job is over; returns the reports of its workers."""
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
    """The processes whose command line names the folder, or whose environment has it as their mark."""
    mark = f"{MARK}={folder}".encode()
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                line = (entry / "cmdline").read_bytes()
                environment = (entry / "environ").read_bytes().split(b"\0")
                state = (entry / "stat").read_text().rpartition(")")[2].split()[0]
            except OSError:
                continue
            if (str(folder).encode() in line or mark in environment) and state != "Z":
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


class HostedLife:
    """A life of a job with a driver and hosts of its own, so that hosts join it and workers are lost."""

    def __init__(self, folder: Path, checkpoints: Path, workers: int, *command: str) -> None:
        self.folder, self.state = folder, folder / "state"
        self.state.mkdir(parents=True)
        self.token, self.address = self.state / "token", f"127.0.0.1:{_free_port()}"
        self.hosts = 0
        flags = ["--role", "driver", "--bind", self.address, "--state-dir", str(self.state), "--min-np", "1"]
        flags += ["--np", str(workers), "--mode", "in-process"]
        flags += ["--checkpoint", str(checkpoints), "--checkpoint-every", str(EVERY), "--"]
        self.driver = self._start("driver", [*flags, sys.executable, "-u", *command])
        wait_for("the driver's token", self.token.exists)

    def _start(self, name: str, flags: List[str]) -> "subprocess.Popen[str]":
        environment = {**os.environ, "OMP_NUM_THREADS": "1", MARK: str(self.folder)}
        with open(self.folder / f"output-{name}", "w") as output:
            return subprocess.Popen(
                [str(binary()), *flags], stdout=output, stderr=subprocess.STDOUT, text=True, env=environment
            )

    def add_host(self, slots: int) -> None:
        name, self.hosts = f"h{self.hosts}", self.hosts + 1
        flags = ["--role", "worker", "--join", self.address, "--host", name, "--slots", str(slots)]
        self._start(name, [*flags, "--token-file", str(self.token)])

    def events(self, kind: str) -> List[Dict[str, Any]]:
        return events(self.folder, kind)

    def world_sizes(self) -> List[int]:
        return [event["world_size"] for event in self.events("generation_running")]

    def workers(self) -> List[Dict[str, Any]]:
        command = [str(binary()), "status", "--json", "--driver", self.address, "--token-file", str(self.token)]
        shown = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL).stdout
        return json.loads(shown)["workers"] if shown else []

    def kill_worker(self) -> None:
        """SIGKILL to the worker of the highest rank, once one trains."""

        def killed() -> bool:
            pids = [worker["pid"] for worker in self.workers() if worker.get("step") and worker.get("pid")]
            if pids:
                os.kill(pids[-1], signal.SIGKILL)
            return bool(pids)

        wait_for("a worker to kill", killed)

    def kill_everything(self) -> None:
        kill_everything(self.folder, self.driver)

    def end(self) -> str:
        """Waits until the job is over; returns the output of all of its processes."""
        code = self.driver.wait(timeout=PATIENCE_S)
        output = "".join(file.read_text() for file in sorted(self.folder.glob("output-*")))
        assert code == 0, output
        return output


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
