"""JAX under our launcher, by restart."""

import pytest

pytest.importorskip("jax")


def test_jax_finds_its_processes_without_arguments_and_anew_after_a_kill(job):
    done = job("jax_collectives.py", workers=2, flags=["--max-job-restarts", "1"])
    assert done.code == 0, done.output
    expected = {"size": 2, "gathered": [0, 1], "sum": 3.0, "restarts": 1}
    ends = sorted(done.said(), key=lambda said: said["rank"])
    assert ends == [{"rank": 0, **expected}, {"rank": 1, **expected}], done.output
    first = done.kinds("worker_exited")[0]
    assert first["worker"].startswith("localhost[1]") and "signal 9" in first["status"], done.output
