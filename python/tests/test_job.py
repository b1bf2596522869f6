"""Jobs under a driver: the collectives, and what survives."""

import pytest
from conftest import stand_in


def test_every_collective(job):
    done = job("operations.py", workers=3)
    assert done.code == 0, done.output
    assert sorted(said["rank"] for said in done.said()) == [0, 1, 2], done.output


def test_arrays_on_the_gpu_go_by_nccl_without_a_copy(job):
    library = str(stand_in())
    environment = {"ELASTIC_CUDA_LIBRARY": library, "ELASTIC_NCCL_LIBRARY": library}
    done = job("on_gpu.py", workers=3, flags=["--backend", "nccl"], environment=environment)
    assert done.code == 0, done.output
    ends = [said for said in done.said() if "rank" in said]
    assert sorted(said["rank"] for said in ends) == [0, 1, 2], done.output
    assert all(said["total"] == 3.0 for said in ends), done.output
    refusals = [said["refused"] for said in done.said() if "refused" in said]
    assert sum("move it there" in refusal for refusal in refusals) == 3, done.output


def test_h_7_a_killed_worker_costs_its_step_and_no_process_of_a_survivor(job):
    done = job("survivor.py", workers=3, flags=["--min-np", "1"])
    assert done.code == 0, done.output
    ends = done.said()
    assert len({(said["steps"], said["weight"]) for said in ends}) == 1, "G-5: one history"
    assert all(said["weight"] == said["steps"] for said in ends), "no step was made twice"
    assert all(said["exact"] for said in ends), "H-23: each sample once"
    assert any(said["calls"] >= 2 for said in ends), "the function is entered anew in the same process"
    assert all(said["resets"] >= 1 for said in ends), "H-24"
    killed = [event for event in done.kinds("worker_exited") if "signal 9" in str(event)]
    assert len(killed) == 1, done.output


@pytest.mark.parametrize(("how", "code"), [("exit", 3), ("raise", 1), ("return", 4), ("commit", 4)])
def test_a_forked_child_that_ends_does_not_end_the_generation_of_its_parent(job, how, code):
    done = job("forking.py", how, flags=["--mode", "in-process"])
    assert done.code == 0, done.output
    assert [said["child"] for said in done.said() if "child" in said] == [code], done.output
    assert len([said for said in done.said() if "rank" in said]) == 2, done.output
    assert done.kinds("reset_decided") == [], done.output


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_x_2_a_child_of_multiprocessing_has_no_part_in_the_job_though_it_imports_the_script(job, method):
    done = job("children.py", method)
    assert done.code == 0, done.output
    children = sorted((said for said in done.said() if "child_of" in said), key=lambda said: said["child_of"])
    assert [(said["child_of"], said["place"]) for said in children] == [(0, [0, 2]), (1, [1, 2])], done.output
    for said in children:
        assert "has no part in its job" in said["allreduce"] and said["rank"] == said["allreduce"], said
        assert not said["is_initialized"]
    assert len([said for said in done.said() if "rank" in said and "generation" in said]) == 2, done.output
    assert done.kinds("reset_decided") == [], done.output


def test_x_2_a_worker_that_multiprocessing_has_started_joins_the_job(job):
    done = job("children.py", "launcher")
    assert done.code == 0, done.output
    ends = sorted(done.said(), key=lambda said: said["rank"])
    assert ends == [{"rank": 0, "sum": 2.0}, {"rank": 1, "sum": 2.0}], done.output


def test_g_10_an_error_of_the_training_function_is_the_jobs_reason(job):
    done = job("failing.py", workers=2, flags=["--max-restarts", "0"])
    assert done.code == 1, done.output
    assert "ArithmeticError: the loss is not finite" in done.output


def test_h_7_a_program_that_raises_otherwise_after_the_error_of_a_collective_keeps_its_process(job):
    done = job("raising_otherwise.py", workers=2, flags=["--min-np", "2"])
    assert done.code == 0, done.output
    assert len(done.kinds("worker_started")) == 3, "two, and one in the place of the killed one"
    assert not done.kinds("worker_failed"), done.output


def test_g_10_a_state_that_cannot_be_encoded_from_the_beginning_is_an_exception_that_costs_no_reset(job):
    done = job("unencodable.py", "begin", workers=2)
    assert done.code == 1, done.output
    assert "TypeError: 'guard' in the state cannot be saved: cannot pickle '_thread.lock' object" in done.output
    assert done.kinds("reset_decided") == [], done.output


@pytest.mark.parametrize("when", ["commit", "end"])
def test_why_a_state_cannot_be_encoded_is_the_jobs_reason(job, when):
    done = job("unencodable.py", when, workers=2, flags=["--max-restarts", "0"])
    assert done.code == 1, done.output
    (line,) = [line for line in done.output.splitlines() if line.startswith("error: ")]
    assert "TypeError: 'guard' in the state cannot be saved: cannot pickle '_thread.lock' object" in line, line


@pytest.mark.parametrize("how", ["left", "late"])
def test_what_follows_training_runs_on_ranks_that_have_trained_to_the_end_and_on_no_others(job, how):
    done = job("leaving.py", how, workers=3, flags=["--min-np", "1"])
    assert done.code == 0, done.output
    assert sorted((said["rank"], said["step"]) for said in done.said()) == [(0, 10), (1, 10)], done.output
    assert "Traceback" not in done.output, done.output
    if how == "late":
        assert (done.state.parent / "came").exists(), "it came before all had ended"


def test_a_rank_that_returns_while_others_go_on_is_named_and_its_return_is_a_commit(job):
    done = job("returning.py", workers=2)
    assert done.code == 0, done.output
    (decided,) = done.kinds("reset_decided")
    assert "its training function has returned" in str(decided), decided
    ends = done.said()
    assert [(said["step"], said["returned"]) for said in ends] == [(10, True)] * 2, done.output


@pytest.mark.parametrize("case", ["look", "fail"])
def test_g_10_a_program_that_joins_and_ends_without_training_has_succeeded(job, case):
    done = job("untrained.py", case, workers=2)
    assert done.code == 0, done.output
    assert "2 workers ended with code 0, and the program has not trained" in done.output
    lives = [(said["rank"], said["size"]) for said in done.said()]
    assert sorted(lives) == {"look": [(0, 2), (1, 2)], "fail": [(0, 2), (1, 2), (1, 2)]}[case], done.output


def test_g_10_a_rank_that_ends_without_training_is_started_again_for_those_that_train(job):
    done = job("untrained.py", "missing", workers=2)
    assert done.code == 0, done.output
    assert [said["total"] for said in done.said() if "total" in said] == [[2.0], [2.0]], done.output
