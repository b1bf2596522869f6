"""T-13: stock torchrun agents under our driver, by `--rdzv-backend=elastic`; and `accelerate launch`, which embeds them."""

import os
import re
import signal
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path

import pytest

from conftest import PATIENCE_S, PROGRAMS, binary

pytest.importorskip("torch")


class Cluster:
    """A driver, and torchruns that join it, by themselves or within `accelerate launch`."""

    def __init__(self, folder: Path, launcher: str) -> None:
        self.folder, self.launcher = folder, launcher
        self.processes = []
        self.driver = self._start(
            "driver",
            [str(binary()), "--role", "driver", "--bind", "127.0.0.1:0", "--state-dir", str(folder / "state")]
            + ["-n", "2", "--min-np", "1", "--", sys.executable, "-m", "elastic_node.torch.member"],
        )
        self.address = self.wait("the driver", lambda: self._read("state/address").strip())

    def torchrun(self, name: str) -> "subprocess.Popen[bytes]":
        configuration = f"token_file={self.folder / 'state' / 'token'},program={binary()}"
        if self.launcher == "torchrun":
            command = ["torch.distributed.run", "--nnodes=1:3", "--nproc-per-node=1", "--max-restarts=3"]
            command += ["--rdzv-backend=elastic", f"--rdzv-endpoint={self.address}", f"--rdzv-conf={configuration}"]
        else:
            # The number of machines is the driver's affair.
            host, _, port = self.address.rpartition(":")
            command = ["accelerate.commands.launch", "--multi_gpu", "--num_machines=2", "--num_processes=2"]
            command += ["--max_restarts=3", f"--main_process_ip={host}", f"--main_process_port={port}"]
            command += ["--machine_rank=0", "--rdzv_backend=elastic", f"--rdzv_conf={configuration}"]
        script = [str(PROGRAMS / "torchrun_script.py"), str(self.finish)]
        return self._start(name, [sys.executable, "-m", *command, *script])

    @property
    def finish(self) -> Path:
        return self.folder / "finish"

    def worlds(self):
        """Sizes of the worlds that have stepped, in order of each torchrun's output."""
        return {path.stem: re.findall(r"world (\d+)", path.read_text()) for path in self.folder.glob("*.log")}

    def _start(self, name, command):
        with open(self.folder / f"{name}.log", "wb") as log:
            environment = {**os.environ, "OMP_NUM_THREADS": "1"}
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, env=environment
            )
        self.processes.append(process)
        return process

    def _read(self, name: str) -> str:
        path = self.folder / name
        return path.read_text() if path.exists() else ""

    def wait(self, what, condition):
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:
            value = condition()
            if value:
                return value
            time.sleep(0.05)
        logs = "\n".join(f"== {path}\n{path.read_text()}" for path in self.folder.glob("*.log"))
        pytest.fail(f"waited in vain for {what}\n{logs}")


@pytest.fixture(params=["torchrun", "accelerate"])
def cluster(tmp_path, request):
    if request.param == "accelerate" and find_spec("accelerate") is None:
        pytest.skip("accelerate is not installed")
    cluster = Cluster(tmp_path, request.param)
    yield cluster
    for process in reversed(cluster.processes):
        process.terminate()
    for process in cluster.processes:
        process.wait(PATIENCE_S)


def test_t_13_torchruns_form_shrink_and_grow(cluster):
    first, second = cluster.torchrun("first"), cluster.torchrun("second")

    def leader():
        """The one whose worker is rank 0, and so prints."""
        of_two = [name for name, worlds in cluster.worlds().items() if "2" in worlds]
        return of_two[0] if of_two else None

    # The host of rank 0 is the one that is lost: stock torchrun never recovers from that.
    lost = cluster.wait("a world of two", leader)
    survivor, other = ("second", first) if lost == "first" else ("first", second)
    other.send_signal(signal.SIGKILL)
    cluster.wait("a world of one", lambda: "1" in cluster.worlds()[survivor])
    third = cluster.torchrun("third")

    def grown():
        worlds = cluster.worlds()
        return worlds["third"][-1:] == ["2"] or worlds[survivor][-1:] == ["2"]

    cluster.wait("a world of two again", grown)
    cluster.finish.touch()
    stays = second if survivor == "second" else first
    assert stays.wait(PATIENCE_S) == 0
    assert third.wait(PATIENCE_S) == 0
    assert cluster.driver.wait(PATIENCE_S) == 0
