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
    "zero_grad_under_way",
    "gradients_changed_under_way",
    "gradients_of_collectives",
    "positional_arguments",
    "aliases",
    "wrapped_twice",
    "calls_that_do_not_match",
    "sync_batch_norm",
    "settings_of_the_optimizer",
]


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
