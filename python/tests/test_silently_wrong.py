"""Programs that once trained wrong without any error, as users of other libraries write them: each case raises now,
or is right."""

import pytest

pytest.importorskip("torch")

CASES = [
    "scheduler_made_before",
    "scheduler_made_after",
    "step_replaced_on_the_plain_one",
    "unfrozen_after_wrapping",
    "added_after_wrapping",
    "closures",
    "two_backward_passes",
    "committed_between_steps",
    "zero_grad_under_way",
    "gradients_changed_under_way",
    "gradients_of_collectives",
    "positional_arguments",
    "aliases",
    "wrapped_twice",
    "calls_that_do_not_match",
    "sync_batch_norm",
    "settings_of_the_optimizer",
    "groups_that_the_program_holds",
    "loaded_after_a_scheduler",
    "types_of_a_broadcast_state",
    "frozen_sparse_embedding",
    "frozen_by_shards",
    "sparse_adam_of_unused_embeddings",
]


def ends_of_disturbed(done):
    """The last words of both ranks of a job that one rank's death has disturbed once."""
    assert done.code == 0, done.output
    ends = done.said()
    assert len(ends) == 2, done.output
    assert sorted(of["calls"] for of in ends) == [1, 2], "a survivor trained on in its process"
    return ends


@pytest.mark.parametrize("case", CASES)
def test_it_is_right_or_raises(job, case):
    done = job("silently_wrong.py", case, workers=2, flags=["--max-restarts", "0"])
    assert done.code == 0, done.output
    assert [said["difference"] for said in done.said()] == [0.0, 0.0], done.output


@pytest.mark.parametrize("how", ["plain", "ddp", "accumulated"])
def test_gradients_of_an_unfinished_step_are_not_added_to_the_next_one(job, how):
    done = job("unfinished_step.py", how, workers=2, flags=["--min-np", "2"])
    assert done.code == 0, done.output
    ends = done.said()
    assert [(of["passes"], of["step"]) for of in ends] == [(8.0, 8), (8.0, 8)], done.output
    assert any(of["calls"] > 1 for of in ends), "a survivor trained on in its process"


@pytest.mark.parametrize(
    "how, changes_at",
    [("plain", "commit"), ("ddp", "commit"), ("distributed", "commit"), ("distributed", "check"), ("accumulated", "check")],
)
def test_gradients_of_a_step_do_not_outlast_a_planned_change_on_some_ranks(job, how, changes_at):
    done = job("planned_change.py", how, changes_at, workers=2, flags=["--min-np", "1"])
    assert done.code == 0, done.output
    ends = done.said()
    passes = 2 if how == "accumulated" else 1
    assert len(ends) == 2 and all(of["weight"] == of["step"] * passes for of in ends), done.output
    assert all(of["alone"] for of in ends) and not any(of["had_gradients"] for of in ends), done.output
    assert max(of["calls"] for of in ends) >= 3, "a survivor kept its live state"
    # A rank says it once, and the one that died did not come to it.
    warned = done.output.count("RuntimeWarning: check_host_updates() between two steps")
    assert warned == (2 if how == "accumulated" else 0), done.output


@pytest.mark.parametrize("how", ["plain", "groups", "shards"])
def test_a_replaced_parameter_has_no_part_in_the_gradients_of_the_next_generation(job, how):
    done = job("replaced_parameter.py", how, workers=2, flags=["--min-np", "2"])
    ends = ends_of_disturbed(done)
    # Gradients by shard of a parameter that was not known before count from the step after the first one.
    expected = ends[0]["weights" if how == "shards" else "expected"]
    assert all(of["weights"] == expected for of in ends), done.output


@pytest.mark.parametrize(
    "how, killed_at, frozen_at",
    [
        ("optimizer", 4, 10),
        ("optimizer", 7, 10),
        ("optimizer", 7, 6),
        ("ddp", 7, 10),
        ("shards", 4, 10),
        ("shards", 7, 10),
        ("shards", 7, 6),
    ],
)
def test_a_layer_that_was_unfrozen_is_so_on_the_successor_of_a_rank_and_frozen_after_a_rollback(job, how, killed_at, frozen_at):
    done = job("unfrozen_layer.py", how, str(killed_at), str(frozen_at), workers=2, flags=["--min-np", "2"])
    assert all(of["weights"] == of["expected"] for of in ends_of_disturbed(done)), done.output


def test_a_group_that_was_added_after_the_last_commit_is_added_again(job):
    done = job("added_group.py", "7", workers=2, flags=["--min-np", "2", "--max-restarts", "1"])
    assert all(of["weights"] == of["expected"] for of in ends_of_disturbed(done)), done.output


def test_a_newcomer_without_a_group_that_was_added_in_training_is_told_the_way_out(job):
    done = job("added_group.py", "10", workers=2, flags=["--min-np", "2", "--max-restarts", "1"])
    due = (
        "the optimiser 'optimizer' of the state that training goes on from (SGD) has 2 groups of 2, 2 parameters, and this rank's has "
        "1 group of 2 parameters. A group that the program adds in training (add_param_group)"
    )
    assert done.code == 1 and due in done.output, done.output


@pytest.mark.parametrize("how, of", [("before", "ranks"), ("within", "ranks"), ("late", "ranks"), ("before", "shards")])
def test_optimizers_whose_parameters_look_alike_average_each_its_own_gradients(job, how, of):
    done = job("optimizers_alike.py", how, of, workers=2, flags=["--min-np", "2"])
    assert all(end["weights"] == end["expected"] for end in ends_of_disturbed(done)), done.output


@pytest.mark.parametrize(
    "how, on_ranks",
    [
        ("swapped", ["made as number 0 of the optimizers that look alike", "made as number 1 of the optimizers that look alike"]),
        ("swapped_steps", ["one.bias in the state, of number 0", "other.bias in the state, of number 0"]),
    ],
)
def test_optimizers_that_look_alike_and_are_made_in_another_order_on_a_rank_are_refused(job, how, on_ranks):
    done = job("optimizers_alike.py", how, "ranks", workers=2, flags=["--max-restarts", "0"])
    due = f"ranks differ in the order of the gradients that DistributedOptimizer averages: {on_ranks[0]} on rank 0; {on_ranks[1]} on rank 1"
    assert done.code == 1 and due in done.output and not done.said(), done.output


def test_a_parameter_that_is_part_of_the_state_by_itself_is_trained_and_none_is_within_another_object(job):
    import torch

    done = job("trained_in_the_state.py", workers=2)
    assert done.code == 0, done.output
    torch.manual_seed(0)
    x = torch.randn(96, 3)
    torch.manual_seed(0)
    weight = torch.randn(3, 1, requires_grad=True)
    optimizer = torch.optim.SGD([weight], lr=0.1)
    for _ in range(20):
        optimizer.zero_grad()
        (x @ weight - x @ torch.tensor([[1.0], [2.0], [3.0]])).square().mean().backward()
        optimizer.step()
    assert len(done.said()) == 2, done.output
    for said in done.said():
        assert said["stays"] and said["weight"] == pytest.approx(weight.flatten().tolist(), rel=1e-4), said
        expected = {"dataclass": ("networks", "number 0"), "average": ("average", "model.weight"), "list": ("parameters", "number 0")}
        for name, (attribute, parameter) in expected.items():
            assert f"{attribute!r} in the state has a parameter in it ({parameter}" in said["refusals"][name], said


def test_methods_of_a_program_s_own_state_are_called_as_horovod_calls_them(job):
    done = job("own_methods.py", workers=2, flags=["--min-np", "2"])
    assert done.code == 0, done.output
    first, second = sorted(done.said(), key=lambda said: said["rank"])
    before = ["sync of 0", "save", "save"]
    after = ["reset", "sync of 4", "save", "save"]
    assert first["calls"] == [*before, "restore to 4", *after], first
    assert second["calls"] == after, "the newcomer"
    assert first["saves"] == second["saves"] == 4, "what save changes is part of the commit"
    assert "Own has no method capture: a class that derives from State says" in first["refusal"]


def test_gradients_by_shard_add_up_over_steps_in_a_world_of_any_size(job):
    ends = []
    for workers in (1, 2, 3):
        done = job("sharded_accumulated.py", workers=workers, state_folder=f"world of {workers}")
        assert done.code == 0, done.output
        ends += done.said()
    assert len(ends) == 6 and all(said == ends[0] for said in ends), ends
    assert ends[0]["sharded"] == pytest.approx(ends[0]["plain"], rel=1e-12)


def test_an_attribute_that_rank_0_does_not_have_is_part_of_no_state(job):
    done = job("given_on_one_rank.py", workers=2, flags=["--min-np", "2"])
    assert done.code == 0, done.output
    for said in done.said():
        assert all(names == ["of_rank_0", "step"] for names in said["seen"]), said
    assert sorted(len(said["seen"]) for said in done.said()) == [1, 2], done.output
