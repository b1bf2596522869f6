"""A torch job whose every process was killed goes on from its durable checkpoint; others read its weights."""

import json
from pathlib import Path

import pytest
from lives import end_of, events, kill_everything, newest_folder, start, wait_for

torch = pytest.importorskip("torch")


def test_a_job_whose_every_process_was_killed_goes_on_with_every_sample_once(tmp_path: Path) -> None:
    checkpoints = tmp_path / "checkpoints"
    first = tmp_path / "first"
    process = start(first, checkpoints, 2, "torch_checkpoints.py")
    wait_for("two checkpoints", lambda: len(events(first, "checkpoint_saved")) >= 2)
    kill_everything(first, process)
    saved = events(first, "checkpoint_saved")[-1]["step"]

    second = tmp_path / "second"
    said = end_of(second, start(second, checkpoints, 3, "torch_checkpoints.py"))
    (loaded,) = events(second, "checkpoint_loaded")
    assert loaded["step"] >= saved
    assert len(said) == 3, said
    for line in said:
        assert line["exact"], "every sample once an epoch, over both lives"
        assert line["began_at"] > 0

    # The place in the data, as Rust's samplers have it.
    position = json.loads((newest_folder(checkpoints) / "manifest.json").read_text())["position"]
    (entry,) = position["entries"]
    assert entry["course"] == {"name": "sampler", "length": 480, "seed": 0, "plan": None}
    assert entry["epoch"] in (0, 1) and 0 < entry["consumed"] <= 480

    # Plain safetensors, without this package: the commit with which training ended.
    from safetensors.torch import load_file

    arrays = {}
    for file in newest_folder(checkpoints).glob("*.safetensors"):
        arrays.update(load_file(str(file)))
    assert arrays["model.layer1.weight"].shape == (2, 3)
    assert arrays["model.layer1.bias"].shape == (2,)
    assert arrays["optimizer.state.0.exp_avg"].shape == (2, 3)
    step = int(arrays["optimizer.state.0.step"].item())
    assert step == said[0]["step"]
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


def test_large_arrays_come_from_the_files_and_survivors_go_back_to_them_until_the_first_commit(tmp_path: Path) -> None:
    checkpoints, program = tmp_path / "checkpoints", "torch_large_checkpoints.py"
    first, second, undisturbed = tmp_path / "first", tmp_path / "second", tmp_path / "undisturbed"
    process = start(first, checkpoints, 2, program)
    wait_for("two checkpoints", lambda: len(events(first, "checkpoint_saved")) >= 2)
    kill_everything(first, process)

    # Rank 1 dies before the first commit: the others go back to the checkpoint, and its successor takes it from them.
    said = end_of(second, start(second, checkpoints, 3, program, str(tmp_path / "died")))
    (expected,) = end_of(undisturbed, start(undisturbed, tmp_path / "others", 1, program))
    assert expected["files"] == []
    (loaded,) = events(second, "checkpoint_loaded")
    assert loaded["step"] > 0 and (tmp_path / "died").exists()
    assert len(events(second, "generation_running")) >= 2
    assert len(said) == 3, said
    for line in said:
        assert (line["sha256"], line["step"]) == (expected["sha256"], expected["step"])
        assert line["still_open"] == [], "they are closed with the first commit"
    # Two ranks have resumed, and one has its state from them.
    assert sorted(len(line["files"]) for line in said) == [0, 2, 2], said


def test_what_a_checkpoint_of_an_earlier_program_does_not_have_begins_as_rank_0_gives_it(job, tmp_path: Path) -> None:
    flags = ["--checkpoint", str(tmp_path / "checkpoints")]
    earlier = job("grown_state.py", "1", flags=flags, state_folder="earlier")
    assert earlier.code == 0, earlier.output
    later = job("grown_state.py", "2", flags=[*flags, "--min-np", "2"], state_folder="later")
    assert later.code == 0, later.output
    assert [exited for exited in later.kinds("worker_exited") if "signal 9" in str(exited)], later.output
    first, second = later.said()
    assert first == second, "G-5: one state"
    assert first["seen"] == [1.0] * 60, "each sample once"
    # Four steps of the earlier program, none of which changed the average, and six of this one.
    assert first == {"steps": 10, "seen": [1.0] * 60, "average": 2.0**4, "best": 0.0}
    assert "has no 'average', 'best', 'sampler', as when an earlier version of the program saved it" in later.output


def test_a_job_that_begins_from_a_checkpoint_with_other_frozen_parameters_says_so_once(job, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    flags = ["--checkpoint", str(tmp_path / "checkpoints")]
    warning = "requires_grad) is part of the state that training goes on from, and differs from what the program has set for 2 of them"
    for life, told in (("first", 0), ("second", 1)):
        done = job("unfrozen_layer.py", "optimizer", "99", workers=2, flags=flags, state_folder=life)
        assert done.code == 0, done.output
        assert done.output.count(warning) == told, done.output


def test_states_that_differ_between_ranks_are_saved_as_rank_0_has_them(job, tmp_path: Path) -> None:
    flags = ["--checkpoint", str(tmp_path / "checkpoints"), "--checkpoint-every", "10"]
    first = job("batch_norm.py", "25", flags=flags, state_folder="first")
    assert first.code == 0, first.output
    ends = sorted(first.said(), key=lambda of: of["rank"])
    assert ends[0]["mean"] != ends[1]["mean"], "each rank has statistics of its own"
    assert first.kinds("checkpoint_saved"), first.output
    assert len(first.kinds("checkpoint_failed")) == 0, first.output
    (warning,) = [event for event in first.kinds("warning") if "states differ" in str(event)]
    assert "rank 0 writes each checkpoint alone" in str(warning)

    second = job("batch_norm.py", "30", flags=flags, state_folder="second")
    assert second.code == 0, second.output
    for end in second.said():
        assert (end["began_at"], end["began_with"]) == (25, ends[0]["mean"])
