"""Numbers that a program reports by name: the last ones are in the job's status, and what is no number is refused."""

from conftest import binary


def test_the_last_numbers_of_each_rank_are_shown_and_wrong_ones_are_refused_by_name(job):
    done = job("reporting.py", environment={"BINARY": str(binary())})
    assert done.code == 0, done.output
    (said,) = done.said()
    assert said["shown"] == {
        str(rank): {"loss": 0.125, "loss/half": 0.0625, "rank": rank} for rank in range(2)
    }
    not_finite, long, control = said["refused"]
    assert not_finite == '"loss" was reported as NaN: only finite numbers can be shown'
    assert "has 65 bytes; at most 64 are allowed" in long
    assert "has a control character" in control
