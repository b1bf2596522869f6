"""`elastic_node.keras` with the real Keras on torch."""

from importlib.util import find_spec

import pytest

pytest.importorskip("torch")
if find_spec("keras") is None:
    pytest.skip("keras is not installed", allow_module_level=True)


def test_keras_survives_the_death_of_a_rank_in_place(job):
    done = job("keras_survivor.py", workers=2, flags=["--min-np", "2"])
    assert done.code == 0, done.output
    ends = done.said()
    assert len(ends) == 2 and all(said["epoch"] == 4 for said in ends), done.output
    assert ends[0]["weights"] == ends[1]["weights"], "one history"
    assert ends[0]["loss"] < 0.1, "it has learned"
    assert sorted(said["calls"] for said in ends) == [1, 2], "the survivor went on in its process"
