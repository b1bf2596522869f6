"""What must be the same on all ranks although no collective carries it: every rank is told who differs, and in what.
Before, they trained apart without a word."""

import re

import pytest

pytest.importorskip("torch")

ORDER = r"{0}.weight float32 \(4, 4\) as number {1} on rank 0; {2}.weight float32 \(4, 4\) as number {1} on rank 1"
CASES = {
    "orders": (2, r"order of the gradients .*: 1.bias float32 \(4,\) as number 0 on rank 0; 0.bias .* on rank 1"),
    "orders_by_shards": (2, "order of the gradients .*: " + ORDER.format(0, 0, 1)),
    "orders_of_a_plain_optimizer": (
        2,
        "a commit: model.0.weight at place 0 of optimizer on rank 0; model.1.weight at place 0 of optimizer on rank 1",
    ),
    "orders_in_a_broadcast": (2, "order of the optimizer's parameters: " + ORDER.format(0, 0, 1)),
    "sets": (4, r"add_process_set: \[0, 1\] on ranks 0, 1; \[2, 3\] on ranks 2, 3"),
    "sets_in_another_order": (3, r"add_process_set: \[0, 1\] on ranks 0, 2; \[0, 2\] on rank 1"),
    "shards": (2, "number of shards: 2 on rank 0; 4 on rank 1"),
    "shards_of_a_sampler": (2, "by 2 shards and a global batch of 12 on rank 0; .* by 4 shards and .* on rank 1"),
    "shards_of_ddp": (2, "number of shards: 2 on rank 0; 4 on rank 1"),
    "batches": (2, "in batches of 10 on each rank on rank 0; .* in batches of 11 on each rank on rank 1"),
    "recorded_batches": (2, "sampler 4 samples of epoch 0 done.* on rank 0; sampler 6 samples .* on rank 1"),
    "newcomer": (2, r"order of the gradients .*: 1.bias .* as number 0 on rank \d; 0.bias .* as number 0 on rank \d"),
}


@pytest.mark.parametrize("case", CASES)
def test_every_rank_is_told_what_differs(job, case):
    workers, due = CASES[case]
    done = job("unlike_ranks.py", case, workers=workers, flags=["--min-np", str(workers)])
    assert done.code == 0, done.output
    said = {of["rank"]: of["said"] for of in done.said()}
    assert sorted(said) == list(range(workers)), done.output
    assert len(set(said.values())) == 1, said
    assert said[0] is not None, "ranks differed, and nobody said so"
    assert re.search(due, said[0]), said[0]


@pytest.mark.parametrize("case", ["alike", "a_rank_that_has_joined"])
def test_what_is_no_difference_is_not_refused(job, case):
    done = job("unlike_ranks.py", case, workers=2, flags=["--max-restarts", "0"])
    assert done.code == 0, done.output
    assert [of["said"] for of in done.said()] == [None, None], done.output
