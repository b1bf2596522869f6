"""JAX under our launcher: by restart, with its trees in a state, and its types in collectives."""

from pathlib import Path

import pytest
from lives import end_of, events, kill_everything, newest_folder, start, wait_for

pytest.importorskip("jax")


def test_jax_finds_its_processes_without_arguments_and_anew_after_a_kill(job):
    done = job("jax_collectives.py", workers=2, flags=["--max-job-restarts", "1"])
    assert done.code == 0, done.output
    expected = {"size": 2, "gathered": [0, 1], "sum": 3.0, "restarts": 1}
    ends = sorted(done.said(), key=lambda said: said["rank"])
    assert ends == [{"rank": 0, **expected}, {"rank": 1, **expected}], done.output
    first = done.kinds("worker_exited")[0]
    assert first["worker"].startswith("localhost[1]") and "signal 9" in first["status"], done.output


def test_types_that_numpy_has_from_jax_are_reduced_and_moved(job):
    done = job("jax_types.py", workers=2)
    assert done.code == 0, done.output
    assert len(done.said()) == 2 * 3, done.output
    for end in done.said():
        kind = end["kind"]
        assert end["sum"] == ["jaxlib", kind, [3, 3]]
        assert end["numpy"] == ["numpy", kind, [2, 2]]
        assert end["scattered"] == ["jaxlib", kind, [3]]
        assert end["gathered"] == ["jaxlib", kind, [1, 1, 2, 2]]
        assert end["root"] == ["jaxlib", kind, [2, 2]]
        assert end["exchanged"] == ["jaxlib", kind, [1, 2]]
        assert f"NumPy does not lend the memory of {kind}: take the function without the underscore" in end["refusal"]


STEPS = 150


def test_c_5_jax_trees_are_named_arrays_of_a_checkpoint_and_come_back_as_they_were(tmp_path: Path) -> None:
    checkpoints, program = tmp_path / "checkpoints", ("jax_checkpoints.py", str(STEPS))
    first, second, undisturbed = tmp_path / "first", tmp_path / "second", tmp_path / "undisturbed"
    process = start(first, checkpoints, 2, *program)
    wait_for("two checkpoints", lambda: len(events(first, "checkpoint_saved")) >= 2)
    kill_everything(first, process)

    from safetensors import safe_open

    shapes = {}
    for file in newest_folder(checkpoints).glob("*.safetensors"):
        with safe_open(file, framework="np") as arrays:
            for name in arrays.keys():
                piece = arrays.get_slice(name)
                shapes[name] = (piece.get_dtype(), piece.get_shape())
    assert shapes == {
        "params.layers.0.kernel": ("BF16", [4, 3]),
        "params.layers.0.bias": ("F32", [3]),
        "params.scale.by": ("F32", [2, 2]),
        "moments.0.mean": ("F32", [4, 3]),
        "moments.0.count": ("I32", []),
        "weak": ("F32", []),
    }

    # By another number of ranks, and beside a job that nobody disturbs.
    said = end_of(second, start(second, checkpoints, 3, *program))
    expected = end_of(undisturbed, start(undisturbed, tmp_path / "others", 1, *program))[0]
    assert len(said) == 3
    for line in said:
        assert line["began_at"] > 0
        assert line["count"] == STEPS
        assert line["are_jax"] and line["is_weak"]
        assert line["devices"] == [1], "where the program has put them"
        assert {**line, "rank": 0, "began_at": 0} == expected
