"""Calls that ranks make in different orders: as under Horovod they meet by name, beside calls that others have not made yet.
Only ranks that wait for each other are refused, and soon."""

import pytest


@pytest.fixture
def said(job):
    """What each rank says in a case: a list by rank."""

    def run(case, workers=2):
        flags = ["--min-np", str(workers), "--max-restarts", "0"]
        done = job("calls_in_any_order.py", case, workers=workers, flags=flags)
        assert done.code == 0, done.output
        by_rank = {of["rank"]: of["said"] for of in done.said()}
        assert sorted(by_rank) == list(range(workers)), done.output
        return [by_rank[rank] for rank in range(workers)]

    return run


@pytest.mark.parametrize("workers", [2, 3])
def test_a_call_of_all_ranks_runs_while_an_earlier_one_waits_for_another_rank(said, workers):
    assert said("after_an_open_call", workers) == [[[workers] * 2] * 3] * workers


def test_a_call_of_a_process_set_does_not_wait_for_an_earlier_one_of_all_ranks(said):
    assert said("of_two_process_sets") == [[[2, 2]] * 2] * 2


def test_a_rank_that_computes_between_its_calls_is_not_taken_for_one_that_waits(said):
    assert said("with_a_computation_between") == [[[2, 2]] * 2] * 2


def test_ranks_that_wait_for_each_other_are_told_soon_and_go_on(said):
    for common, why, seconds, afterwards in said("waiting_for_each_other"):
        assert common == afterwards == [2, 2]
        assert why == "ranks wait for each other's calls: rank 0: allreduce.x; rank 1: allreduce.y"
        assert seconds < 10


@pytest.mark.parametrize("metrics", ["named", "nameless"])
def test_metrics_between_backward_pass_and_step_never_meet_gradients(said, metrics):
    pytest.importorskip("torch")
    first, second = said(f"two_heads_with_{metrics}_metrics")
    assert first == second
    assert first[0] == [0.5] * 6


def test_a_rank_without_a_gradient_learns_from_the_others_that_theirs_are_sparse(said):
    pytest.importorskip("torch")
    first = [-3, -1, 0, -4]
    second = [-1, -3, 0, -4]
    assert said("sparse_gradients_of_one_rank") == [[[first, second], [True]]] * 2


def test_optimizers_whose_parameters_look_alike_average_each_their_own(said):
    pytest.importorskip("torch")
    assert said("two_optimizers_alike") == [[[[-3, -3]], [[-30, -30]]]] * 2


def test_the_names_of_steps_that_were_given_up_are_free_for_the_next(said):
    pytest.importorskip("torch")
    assert said("steps_that_are_given_up") == [[[-1, -1]]] * 2
