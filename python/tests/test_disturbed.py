"""C-2: the Python examples with shards that lose workers, win a host, and lose every process, train the weights of one undisturbed
worker, bit for bit."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import PATIENCE_S, ROOT, binary
from lives import EVERY, HostedLife, newest_folder, wait_for

FOLDER = ROOT / "examples" / "python"
#: 300 steps, of which the first life makes a few dozen: its steps take their time, so that it is killed in their middle.
TRAINING = ["--epochs", "25", "--shards", "8"]


def digest(output: str) -> str:
    found = re.search(r"sha256 ([0-9a-f]{64})", output)
    assert found, output
    return found[1]


@pytest.mark.parametrize("program, module", [("numpy_digits.py", "numpy"), ("torch_ddp_digits.py", "torch")])
def test_c_2_kills_a_join_and_the_loss_of_everything_leave_the_weights_as_they_were(
    tmp_path: Path, program: str, module: str
) -> None:
    pytest.importorskip(module)
    example = str(FOLDER / program)
    alone = subprocess.run(
        [sys.executable, example, *TRAINING],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        env={"OMP_NUM_THREADS": "1"},
    )
    assert alone.returncode == 0, alone.stderr

    checkpoints = tmp_path / "checkpoints"
    first = HostedLife(tmp_path / "first", checkpoints, 2, example, *TRAINING, "--step-ms", "150")
    first.add_host(2)
    wait_for("a checkpoint", lambda: first.events("checkpoint_saved"))
    first.kill_worker()
    wait_for("the world without it, or with its successor", lambda: len(first.world_sizes()) >= 2)
    first.add_host(1)
    wait_for("the world with the new host", lambda: 3 in first.world_sizes())
    saved = len(first.events("checkpoint_saved"))
    wait_for("a checkpoint of that world", lambda: len(first.events("checkpoint_saved")) > saved)
    first.kill_everything()
    assert not first.events("job_ended")

    # The place in the data is what any reader finds, without this package.
    shown = json.loads(
        subprocess.run(
            [str(binary()), "checkpoint", "show", str(newest_folder(checkpoints)), "--json"],
            stdout=subprocess.PIPE,
            check=True,
        ).stdout
    )
    (entry,) = shown["position"]["entries"]
    step, per_epoch = shown["step"], 12
    assert entry == {
        "course": {"name": "sampler", "length": 1437, "seed": 0, "plan": {"shards": 8, "global_batch": 128}},
        "epoch": (step - 1) // per_epoch,
        "consumed": min(((step - 1) % per_epoch + 1) * 128, 1437),
    }

    second = HostedLife(tmp_path / "second", checkpoints, 4, example, *TRAINING, "--step-ms", "20")
    second.add_host(4)
    (loaded,) = wait_for("the checkpoint that is loaded", lambda: second.events("checkpoint_loaded"))
    assert loaded["step"] >= 2 * EVERY
    second.kill_worker()
    output = second.end()
    assert 4 in second.world_sizes() and len(second.world_sizes()) >= 2
    assert digest(output) == digest(alone.stdout), output
