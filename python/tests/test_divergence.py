"""Replicas that differ (C-6): one bit of one rank's weights is flipped."""

import importlib.util

import pytest

AT = 30


def if_installed(name):
    is_missing = importlib.util.find_spec(name) is None
    return pytest.param(name, marks=pytest.mark.skipif(is_missing, reason=f"{name} is not installed"))


KINDS = [if_installed("numpy"), if_installed("torch"), if_installed("jax")]
WEIGHTS = {"numpy": "weights", "torch": "model.0.weight", "jax": "params.layers.0.kernel"}


@pytest.mark.parametrize("kind", KINDS)
def test_c_6_a_flipped_bit_is_named_with_array_rank_and_step_and_nothing_else_is(job, kind):
    done = job("flipping.py", kind, str(AT), workers=3)
    assert done.code == 0, done.output
    found = done.kinds("replicas_differ")
    first = found[0]
    assert (first["tensor"], first["ranks"], first["agreeing"]) == (WEIGHTS[kind], [1], 2), found
    assert AT <= first["step"] <= AT + 64, found
    # The arrays that differ by rank are left out, and a report says so unless the program has declared them.
    assert {event["tensor"] for event in found} == {WEIGHTS[kind]}
    left_out = {event["tensor"] for event in done.kinds("not_compared")}
    assert "own.mean" in left_out, done.output
    assert not {"declared.mean", WEIGHTS[kind]} & left_out, done.output
    assert kind != "torch" or "model.1.running_mean" in left_out, done.output


@pytest.mark.parametrize("kind", KINDS)
def test_c_6_repair_makes_the_weights_of_all_ranks_equal_again(job, kind):
    done = job("flipping.py", kind, str(AT), workers=3, flags=["--on-divergence", "repair"])
    assert done.code == 0, done.output
    said = done.said()
    assert sorted(it["rank"] for it in said) == [0, 1, 2]
    assert len({it["crc"] for it in said}) == 1, said
    assert len(done.kinds("reset_done")) == 1, done.output
