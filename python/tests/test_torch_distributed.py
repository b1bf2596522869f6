"""`torch.distributed` on our collectives; several ranks of what torch adds; what survives."""

import pytest
from conftest import check_torch_survivor

torch = pytest.importorskip("torch")


@pytest.mark.parametrize("kind", ["ddp", "fsdp", "ddp compiled", "fsdp compiled"])
def test_t_14_an_unmodified_script_trains_as_on_gloo(ranks, kind):
    if kind != "ddp" and tuple(map(int, torch.__version__.split(".")[:2])) < (2, 14):
        pytest.skip("gloo of torch 2.8 gives the sum where FSDP2 asks for the average: nothing to compare with")
    outputs = (ranks("torch_training.py", name, *kind.split())[0] for name in ("gloo", "elastic"))
    # Gloo prints lines of its own before.
    gloo, elastic = (output.splitlines()[-1] for output in outputs)
    assert elastic.startswith("loss ") and elastic == gloo


def test_every_operation_of_a_backend(ranks):
    assert ranks("torch_operations.py", size=3) == ["well\n"] * 3


@pytest.mark.parametrize("case", ["elements", "layouts", "refused", "channels_last"])
def test_reductions_and_layouts_are_those_of_gloo(ranks, case):
    assert ranks("torch_reductions.py", case, size=3) == ["well\n"] * 3


def test_what_cannot_be_sent_is_refused_and_the_next_message_arrives(ranks):
    assert ranks("torch_reductions.py", "unsendable") == ["well\n"] * 2


def test_a_script_that_exits_with_works_in_flight_ends_well(ranks):
    for _ in range(3):
        assert ranks("exit_in_flight.py") == ["well\n"] * 2


@pytest.mark.parametrize(
    "cases",
    [
        ["batched", "ring", "any_source", "monitored", "profiled"],
        ["sparse", "callbacks", "power_sgd", "uneven", "forked"],
        ["checkpointed", "pipelined", "split", "kept"],
    ],
    ids=" ".join,
)
def test_what_torch_does_beyond_dense_collectives(ranks, cases):
    """Sends and receives in any order, monitored barriers, events of the profiler; sparse sums, callbacks that call
    collectives, PowerSGD, DDP.join, forked children; DCP's async_save, pipelining."""
    assert ranks("torch_more.py", *cases, size=3) == ["well\n"] * 3


def test_ddp_survives_the_death_of_a_rank_in_place(job):
    done = job("ddp_survivor.py", workers=3, flags=["--min-np", "1"])
    assert done.code == 0, done.output
    ends = done.said()
    assert len({str(said["losses"]) for said in ends}) == 1, "G-5: one history"
    assert all(len(said["losses"]) == said["step"] == 40 for said in ends)
    survivors = [said for said in ends if said["aborted"]]
    assert survivors, "the step was aborted in a process that went on"
    assert all(said["aborted"] == 1 for said in survivors), done.output


@pytest.mark.parametrize("kept_by", ["handle", "trainer"])
def test_a_replica_of_a_broken_off_step_has_no_part_in_the_next_generation(job, kept_by):
    done = job("ddp_kept_replica.py", kept_by, workers=3, flags=["--min-np", "2"])
    assert done.code == 0, done.output
    ends = done.said()
    assert len({said["weights"] for said in ends}) == 1, "G-5: one history"
    assert max(len(said["calls"]) for said in ends) > 1, "a survivor trained on in its process"


def test_a_group_of_all_ranks_has_calls_of_its_own(job):
    done = job("side_group.py", "within", workers=2, flags=["--max-restarts", "0"])
    assert done.code == 0, done.output
    assert done.said() == [{"main": 0, "side": 0}] * 2, done.output


def test_a_process_group_that_was_made_before_run_is_refused(job):
    done = job("side_group.py", "above", workers=2, flags=["--max-restarts", "0"])
    said = done.said()
    assert said and all("at the beginning of the training function" in of["refusal"] for of in said), done.output


def test_a_distributed_optimizer_averages_as_one_process_would(job):
    done = job("averaged_gradients.py", workers=3)
    assert done.code == 0, done.output
    said = done.said()
    assert sorted(of["rank"] for of in said) == [0, 1, 2]
    assert all(of["is_same_on_all"] for of in said)
    for of in said:
        assert of["buckets"] > 3
        # Beside the backward pass: all but those that wait for a gradient which this rank does not have.
        assert all(count > 0 for count in of["launched_in_backward"]), of


def test_a_torch_state_goes_back_as_one_unit_when_a_worker_is_killed(job):
    """Horovod's quirk 4: the weights ran ahead of counters, schedulers and random numbers there."""
    done = job("torch_survivor.py", workers=3, flags=["--min-np", "1"])
    check_torch_survivor(done)
    killed = [event for event in done.kinds("worker_exited") if "signal 9" in str(event)]
    assert len(killed) == 1, done.output


@pytest.mark.parametrize("way", ["by-restart", "in-process"])
def test_no_rank_listens_on_all_interfaces(job, way):
    done = job("listening.py", way, workers=3, flags=["--mode", way.replace("by-restart", "restart")])
    assert done.code == 0, done.output
    ends = done.said()
    assert sorted(said["rank"] for said in ends) == [0, 1, 2], done.output
    for said in ends:
        assert said["groups"] == "ProcessGroupElastic"
        # On one machine all that is open is on the loopback, 127.0.0.1.
        assert set(said["listens"]) <= {"0100007F"}, said


@pytest.mark.parametrize("way", ["new_group", "mesh"])
def test_a_wait_for_the_members_of_a_group_ends_with_the_generation(job, way):
    done = job("late_member.py", way, workers=4)
    assert done.code == 0, done.output
    ends = done.said()
    assert [(said["rank"], said["step"]) for said in sorted(ends, key=lambda it: it["rank"])] == [(rank, 4) for rank in range(4)]
    waited_s = [said["waited_s"] for said in ends if said["aborted"]]
    # The group's timeout is half an hour.
    assert waited_s and max(waited_s) < 30, done.output


def test_groups_of_other_ranks_form_after_all_groups_were_destroyed(ranks):
    assert ranks("meeting_outside.py", "again", size=3) == ["well\n"] * 3


def test_a_group_that_does_not_form_in_time_names_the_ranks_that_did_not_come(ranks):
    assert ranks("meeting_outside.py", "late", size=3) == ["well\n"] * 3
