"""Workers that hang: each is named, with what it does and where, and replaced; the job trains to its end."""

import os
import subprocess

import pytest

from conftest import PROGRAMS

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
        ("full_stdout", "waits, in write to file descriptor 1 (a pipe)"),
        ("native_code", "waits"),
    ],
)
def test_x_2_a_hang_is_named_with_what_the_process_does_and_its_stack(job, way, doing):
    hang = the_hang(job("hanging.py", way, flags=RESTART))
    assert hang["doing"].startswith(doing), hang
    innermost = next(line for line in hang["stack"].splitlines() if "hanging.py" in line)
    assert innermost.endswith(f"in {way}"), hang["stack"]


def test_x_2_an_endless_loop_is_named_with_its_file_and_line(job):
    stack = the_hang(job("hanging.py", "spin", flags=RESTART))["stack"]
    program = PROGRAMS / "hanging.py"
    lines = program.read_text().splitlines()
    # The loop's head and its body, each counted from one.
    head = lines.index("    while True:", lines.index("def spin():")) + 1
    expected = {f'File "{program}", line {line} in spin' for line in (head, head + 1)}
    assert expected & {line.strip() for line in stack.splitlines()}, stack


def test_x_2_a_data_loader_whose_process_is_stopped_is_named_with_that_process(job, tmp_path):
    pytest.importorskip("torch")
    hang = the_hang(job("hanging.py", "stopped_loader", flags=RESTART))
    loader = (tmp_path / "loader").read_text()
    assert f"its child process {loader} (" in hang["doing"], hang
    assert ") is stopped" in hang["doing"], hang
    assert "in stopped_loader" in hang["stack"] and "dataloader.py" in hang["stack"], hang["stack"]


def test_x_2_a_data_loader_whose_process_was_killed_is_the_cause_of_the_reset(job, tmp_path):
    pytest.importorskip("torch")
    done = job("hanging.py", "killed_loader", flags=["--min-np", "1"])
    assert done.code == 0, done.output
    loader = (tmp_path / "loader").read_text()
    # The reset may be decided by its peer's first report; the reset's own report has the cause that is known by then.
    causes = [reset["cause"] for reset in done.kinds("reset_done")]
    assert any("DataLoader worker" in cause and loader in cause for cause in causes), causes


def test_x_2_native_code_that_keeps_the_gil_is_named_by_its_functions(job):
    calls = the_hang(job("hanging.py", "native_code", flags=RESTART))["native_stack"].splitlines()
    assert calls[0].startswith("pause ") and any("ctypes" in call for call in calls), calls


def test_o_1_the_time_of_a_hang_is_booked_as_such_and_charged_to_its_reset(job):
    done = job("hanging.py", "lock", flags=RESTART)
    hang = the_hang(done)
    costs = [dict(reset["cost"]).get("hung", 0) for reset in done.history()]
    assert max(costs) >= 2 * hang["late_ms"] / 1e3, (costs, hang)


def test_x_2_a_full_pipe_is_named_as_what_is_waited_for(job):
    assert "(a pipe)" in the_hang(job("hanging.py", "full_pipe", flags=RESTART))["doing"]


def test_a_hang_in_a_section_is_named_with_it_and_as_late_as_the_program_says(job):
    flags = ["--min-np", "1", "--on-hang", "restart"]
    done = job("hanging.py", "section", flags=flags)
    assert done.code == 0, done.output
    (hang,) = done.kinds("worker_stalled")
    assert 1_000 <= hang["late_ms"] < 10_000, hang
    assert hang["doing"].endswith('(in its section "evaluation")'), hang


@pytest.fixture
def disk(tmp_path):
    """A disk of its own."""
    image, disk = tmp_path / "image", tmp_path / "disk"
    disk.mkdir()
    with open(image, "wb") as file:
        file.truncate(24 << 20)
    subprocess.run(["mkfs.ext4", "-q", image], check=True)
    mounted = subprocess.run(["mount", "-o", "loop", image, disk], stderr=subprocess.PIPE, text=True)
    if mounted.returncode != 0:
        assert "ELASTIC_REQUIRE_NETWORK" not in os.environ, mounted.stderr
        pytest.skip(f"no disk can be made ({mounted.stderr.strip()}): that needs root")
    yield disk
    subprocess.run(["fsfreeze", "-u", disk], stderr=subprocess.DEVNULL)
    subprocess.run(["umount", "-l", disk], check=True)


def test_x_2_a_disk_that_does_not_answer_is_named_with_the_file(job, disk):
    flags = ["--hang-timeout", "2", "--on-hang", "tell"]
    done = job("hanging.py", "frozen_disk", flags=flags, environment={"DISK": str(disk)})
    hang = the_hang(done)
    assert hang["doing"].startswith("is in uninterruptible sleep"), hang
    assert "in write to file descriptor" in hang["doing"] and f"({disk}/file)" in hang["doing"], hang
    assert done.kinds("stall_ended") and not done.kinds("reset_decided"), "nobody was disturbed"


def test_x_2_a_child_that_has_ended_is_named_with_the_hang_of_who_waits_for_it(job):
    hang = the_hang(job("hanging.py", "dead_child", flags=RESTART))
    assert "(sleep) has ended by SIGKILL and was not waited for" in hang["doing"], hang


def test_x_2_a_stopped_worker_is_replaced_and_the_cause_says_that_it_was_stopped(job):
    done = job("hanging.py", "stopped", flags=["--min-np", "1"])
    assert done.code == 0, done.output
    (hang,) = done.kinds("worker_stalled")
    assert hang["doing"] == "is stopped by a signal or a debugger" and hang["pid"], hang
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


def test_x_2_a_script_that_only_imports_torch_is_named_with_its_python_stack(job):
    pytest.importorskip("torch")
    done = job("plain_script.py", workers=3, flags=["--mode", "restart", "--hang-timeout", "2"])
    assert done.code == 0, done.output
    (hang,) = (it for it in done.kinds("worker_stalled") if it["rank"] == 1)
    assert hang["grounds"]["sureness"] == "possible", hang
    innermost = hang["stack"].splitlines()[1]
    assert 'plain_script.py", line ' in innermost and innermost.endswith(" in waits_for_its_data"), hang


@pytest.mark.parametrize("workers", [2, 4])
def test_x_2_who_has_not_come_is_named_by_torchs_flight_recorder_in_a_stock_script(job, workers):
    pytest.importorskip("torch")
    flags = ["--mode", "restart", "--hang-timeout", "2"]
    done = job("plain_gloo.py", "waits", workers=workers, flags=flags)
    assert done.code == 0, done.output
    (hang,) = (it for it in done.kinds("worker_stalled") if it["grounds"]["sureness"] == "likely")
    assert hang["rank"] == 1, hang
    assert hang["grounds"]["why"].startswith("torch has recorded "), hang
    assert 'plain_gloo.py", line ' in hang["stack"] and " in waits" in hang["stack"], hang
    assert "_flight_recorder" not in hang["stack"], hang
    assert done.kinds("stall_ended") and not done.kinds("reset_decided"), "nobody was disturbed"
