"""Jobs for the tests: real drivers, agents and workers on this machine. pytest gives them to the tests as
fixtures."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any, Callable, Dict, List, Optional

import pytest

ROOT = Path(__file__).resolve().parents[2]
PROGRAMS = Path(__file__).resolve().parent / "programs"

#: Most time for a job, in seconds.
PATIENCE_S = 300

#: A worker's line of JSON, behind its prefix.
SAID = re.compile(r"\[[^\]]*\]:? (\{\".*)")


def binary() -> Path:
    """`elastic-node`: the one that is named in the environment, or that of the development build."""
    found = Path(os.environ.get("ELASTIC_NODE_BINARY", ROOT / "target" / "debug" / "elastic-node"))
    if not found.exists():
        pytest.fail(f"{found} is not there: run `cargo build`, or name it in ELASTIC_NODE_BINARY")
    return found


def stand_in() -> Path:
    """The stand-in of CUDA and NCCL, which the same build has made."""
    found = binary().with_name("libelastic_gpu_stand_in.so")
    if not found.exists():
        pytest.fail(f"{found} is not there: run `cargo build --package elastic-gpu-stand-in`")
    return found


class Finished:
    """A job that has ended."""

    def __init__(self, code: int, output: str, state: Path) -> None:
        self.code, self.output, self.state = code, output, state
        events = (state / "events.jsonl").read_text().splitlines()
        self.events: List[Dict[str, Any]] = [json.loads(event) for event in events]

    def kinds(self, kind: str) -> List[Dict[str, Any]]:
        return [event for event in self.events if event["kind"] == kind]

    def history(self) -> List[Dict[str, Any]]:
        """Its resets, as `elastic-node history` tells them."""
        command = [str(binary()), "history", "--json", "--state-dir", str(self.state)]
        return json.loads(subprocess.run(command, check=True, capture_output=True).stdout)

    def said(self) -> List[Dict[str, Any]]:
        """The lines of JSON that its workers have printed."""
        lines = (SAID.match(line) for line in self.output.splitlines())
        return [json.loads(line[1]) for line in lines if line]


def check_torch_survivor(done: Finished) -> None:
    """Checks a job of `torch_survivor.py`: weights, counters, schedulers and random numbers went back together."""
    assert done.code == 0, done.output
    ends = done.said()
    assert ends and len({of["step"] for of in ends}) == 1, "G-5: one history"
    for of in ends:
        assert of["weight"] == of["scheduled"] == of["step"], of
        assert of["drawn_in_order"], of
        assert of["exact"], "H-23: each sample once an epoch"
    assert any(of["calls"] > 1 for of in ends), "the function is entered anew in the same process"


@pytest.fixture
def job(tmp_path: Path) -> Callable[..., Finished]:
    """Runs a program as a job: `job("name.py", workers=3, flags=[…])`."""

    def run(
        program: str,
        *arguments: str,
        workers: int = 2,
        flags: Any = (),
        root: Path = PROGRAMS,
        environment: Optional[Dict[str, str]] = None,
        state_folder: str = "state",
    ) -> Finished:
        state = tmp_path / state_folder
        command = [str(binary()), "run", "--np", str(workers), "--state-dir", str(state), *flags, "--"]
        command += [sys.executable, "-u", str(root / program), *arguments]
        own = {"OMP_NUM_THREADS": "1", "CONTROL": str(tmp_path)}
        environment = {**os.environ, **own, **(environment or {})}
        with subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment
        ) as process:
            try:
                output, _ = process.communicate(timeout=PATIENCE_S)
            except subprocess.TimeoutExpired:
                # The driver ends its agents, and those their workers.
                process.terminate()
                output, _ = process.communicate()
                pytest.fail(f"the job did not end within {PATIENCE_S} s:\n{output}")
        return Finished(process.returncode, output, state)

    return run


@pytest.fixture
def ranks(tmp_path: Path) -> Callable[..., List[str]]:
    """Runs a program on several ranks as torchrun would start them, without a driver; returns the output of each."""

    def run(program: str, *arguments: str, size: int = 2) -> List[str]:
        port = _free_port()
        processes = []
        for rank in range(size):
            environment = {
                **os.environ,
                "RANK": str(rank),
                "WORLD_SIZE": str(size),
                "LOCAL_RANK": str(rank),
                "LOCAL_WORLD_SIZE": str(size),
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": str(port),
                "OMP_NUM_THREADS": "1",
                "CONTROL": str(tmp_path),
            }
            processes.append(
                subprocess.Popen(
                    [sys.executable, str(PROGRAMS / program), *arguments],
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    text=True,
                    env=environment,
                )
            )
        outputs = []
        try:
            for process in processes:
                output, errors = process.communicate(timeout=PATIENCE_S)
                assert process.returncode == 0, errors
                outputs.append(output)
        finally:
            for process in processes:
                process.kill()
        return outputs

    return run


def _free_port() -> int:
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
