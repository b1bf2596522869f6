"""`torch.distributed` on our collectives, and DDP that survives."""

import pytest

torch = pytest.importorskip("torch")


@pytest.mark.parametrize("kind", ["ddp", "fsdp"])
def test_t_14_an_unmodified_script_trains_as_on_gloo(ranks, kind):
    (gloo, _), (elastic, _) = (ranks("torch_training.py", name, kind) for name in ("gloo", "elastic"))
    assert elastic.startswith("loss ") and elastic == gloo


def test_every_operation_of_a_backend(ranks):
    assert ranks("torch_operations.py", size=3) == ["well\n"] * 3


def test_ddp_survives_the_death_of_a_rank_in_place(job):
    done = job("ddp_survivor.py", workers=3, flags=["--min-np", "1"])
    assert done.code == 0, done.output
    ends = done.said()
    assert len({str(said["losses"]) for said in ends}) == 1, "G-5: one history"
    assert all(len(said["losses"]) == said["step"] == 40 for said in ends)
    survivors = [said for said in ends if said["aborted"]]
    assert survivors, "the step was aborted in a process that went on"
    assert all(said["aborted"] == 1 for said in survivors), done.output
