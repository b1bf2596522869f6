"""Workers that hang: each is named, with what it does and where, and replaced; the job trains to its end."""

import pytest

RESTART = ["--min-np", "1", "--hang-timeout", "2", "--on-hang", "restart"]


def the_hang(done):
    assert done.code == 0, done.output
    (hang,) = done.kinds("worker_stalled")
    assert (hang["rank"], hang["waiting"]) == (1, 1), hang
    assert 2_000 <= hang["late_ms"] < 15_000, hang
    assert "(rank 1) HANGS: 1 other has waited for it" in done.output, done.output
    return hang


@pytest.mark.parametrize(
    "way, doing",
    [
        ("spin", "works: "),
        ("lock", "waits"),
        ("full_pipe", "waits, in write to file descriptor "),
        ("native_code", "waits"),
    ],
)
def test_x_2_a_hang_is_named_with_what_the_process_does_and_its_stack(job, way, doing):
    hang = the_hang(job("hanging.py", way, flags=RESTART))
    assert hang["doing"].startswith(doing), hang
    innermost = next(line for line in hang["stack"].splitlines() if "hanging.py" in line)
    assert innermost.endswith(f"in {way}"), hang["stack"]


def test_x_2_a_full_pipe_is_named_as_what_is_waited_for(job):
    assert "(a pipe)" in the_hang(job("hanging.py", "full_pipe", flags=RESTART))["doing"]


def test_x_2_a_child_that_has_ended_is_named_with_the_hang_of_who_waits_for_it(job):
    hang = the_hang(job("hanging.py", "dead_child", flags=RESTART))
    assert "(sleep) has ended by SIGKILL and was not waited for" in hang["doing"], hang


def test_x_2_a_stopped_worker_is_replaced_and_the_cause_says_that_it_was_stopped(job):
    done = job("hanging.py", "stopped", flags=["--min-np", "1"])
    assert done.code == 0, done.output
    causes = [reset["cause"] for reset in done.kinds("reset_decided")]
    assert any("its process is stopped by a signal" in cause for cause in causes), causes


def test_a_hang_that_ends_by_itself_is_told_and_changes_nothing(job):
    done = job("slow_rank.py", flags=["--hang-timeout", "1", "--on-hang", "tell"])
    assert done.code == 0, done.output
    (hang,) = done.kinds("worker_stalled")
    (ended,) = done.kinds("stall_ended")
    assert hang["worker"] == ended["worker"] and "stack" not in hang, (hang, ended)
    assert ended["ms"] >= hang["late_ms"], (hang, ended)
    assert not done.kinds("reset_decided"), "nobody was disturbed"
