"""A rank that computes for longer than the others is named, and the status shows how long each computes and waits."""

import pytest
from conftest import binary


@pytest.mark.parametrize("way", ["arrays", pytest.param("ddp", id="ddp")])
def test_the_slow_rank_is_named_and_the_others_are_seen_to_wait(job, way):
    if way == "ddp":
        pytest.importorskip("torch")
    done = job("straggling.py", way, workers=3, environment={"BINARY": str(binary())})
    assert done.code == 0, done.output
    (said,) = done.said()
    (straggler,) = said["stragglers"]
    assert straggler["rank"] == 1 and straggler["factor"] > 2, said
    for rank, (step_ms, compute_ms, waiting_ms) in said["shown"].items():
        assert 60 <= step_ms < 200, said
        if rank == "1":
            assert compute_ms > 0.8 * step_ms, said
        else:
            assert compute_ms < 0.5 * step_ms < waiting_ms + 0.1 * step_ms, said
    (found,) = done.kinds("straggler_found")
    assert (found["rank"], found["ranks"], found["is_host"]) == (1, [1], False)
    assert "(rank 1) is SLOW: it computes" in done.output, done.output


@pytest.mark.parametrize("way", ["section", "loader"])
def test_o_1_waiting_for_data_is_told_and_not_taken_for_computation(job, way):
    if way == "loader":
        pytest.importorskip("torch")
    done = job("waiting_for_data.py", way)
    assert done.code == 0, done.output
    told = done.kinds("steps_measured")
    assert told and all(0.4 < it["data"] < 1 for it in told), told
