"""`elastic_node.integrations` with the real frameworks: a rank is killed in mid-training, the others go on in their processes,
and another one joins them."""

from importlib.util import find_spec

import pytest

pytest.importorskip("torch")


def ends_of(done, workers):
    """The ranks' reports at the end, after checks that hold for every framework."""
    assert done.code == 0, done.output
    ends = done.said()
    assert sorted(said["rank"] for said in ends) == list(range(workers)), done.output
    assert len({said["content"] for said in ends}) == 1, "G-5: one final state"
    assert all(said == {**ends[0], "rank": said["rank"], "calls": said["calls"]} for said in ends), "one history"
    # Training went on at once with those that were left, then with all.
    sizes = ends[0]["sizes"]
    assert set(sizes) == {workers, workers - 1} and sizes[0] == sizes[-1] == workers, sizes
    assert len(sizes) == ends[0]["steps"], "each step counts once"
    killed = [event for event in done.kinds("worker_exited") if "signal 9" in str(event)]
    assert len(killed) == 1, done.output
    assert sorted(said["calls"] for said in ends) == [1] + [3] * (workers - 1), "survivors went on in their processes"
    return ends


def needs(framework):
    if find_spec(framework) is None:
        pytest.skip(f"{framework} is not installed")


def test_lightning_goes_on_in_process(job):
    needs("lightning")
    end = ends_of(job("lightning_survivor.py", workers=3, flags=["--min-np", "1"]), 3)[0]
    assert end["epochs"] == 3 and end["seen"] == [240] * 3, "each sample once an epoch"
    assert end["rate"] == 0.01 * 0.5**3, "the scheduler counts epochs"
    assert end["index"] == 5.5, "what is logged with sync_dist is the mean over the ranks"


def test_a_loader_of_lightning_that_the_states_sampler_does_not_count_is_refused(job):
    needs("lightning")
    done = job("lightning_refused.py", workers=2)
    assert done.code == 0, done.output
    assert len(done.said()) == 2, done.output
    for refusals in done.said():
        expected = "the training loader (DataLoader) does not take its samples from the sampler of LightningState"
        for name in ("shuffled", "another", "batches"):
            assert expected in refusals[name], refusals
        assert refusals["the state's"] == 1, "its epoch is done"


def test_an_epoch_of_lightning_ends_where_a_dropped_batch_is_left(job):
    needs("lightning")
    done = job("lightning_dropped.py", workers=2)
    assert done.code == 0, done.output
    ends = done.said()
    assert len(ends) == 2, done.output
    for end in ends:
        assert end["sizes"] == [4] * 3, "one whole batch of each epoch, also of the first one"
        assert end["epochs"] == 3 and end["validated"] == [0, 1, 2] and end["rate"] == 0.01 * 0.5**3, end
        assert "an epoch has no batch of 4 samples for each of 2 ranks" in end["refusal"], end


@pytest.mark.parametrize(
    "kind, batches_per_commit, steps",
    [("automatic", 1, [0, 1, 2, 3, 4]), ("automatic", 4, [0, 1, 3, 4]), ("manual", 4, [0] * 4)],
)
def test_lightning_commits_where_a_step_is_made(job, kind, batches_per_commit, steps):
    """An epoch has six batches: a step of four, and one of two. The last commit is that of the end."""
    needs("lightning")
    done = job("lightning_accumulated.py", kind, str(batches_per_commit), workers=2)
    assert done.code == 0, done.output
    assert done.said() == [{"commits": [[0, step] for step in steps]}] * 2, done.output


def test_a_loss_before_the_first_commit_of_a_step_of_lightning_goes_back_to_the_module_as_it_was_made(job):
    needs("lightning")
    done = job("lightning_begun.py", workers=2, flags=["--min-np", "2"])
    assert done.code == 0, done.output
    assert [exited for exited in done.kinds("worker_exited") if "signal 9" in str(exited)], done.output
    # Rank 0 has survived, and began twice.
    begun = [said["begun"] for said in sorted(done.said(), key=lambda said: said["rank"])]
    assert begun == [[True, True], [True]], done.output


@pytest.mark.parametrize("watched", ["validation", "training", "step"])
def test_a_plateau_of_lightning_is_noticed_in_the_epoch_of_a_loss(job, watched):
    """A value of the training's batches is one of the rest of the epoch then, and what watches it is warned of."""
    needs("lightning")
    done = job("lightning_plateau.py", watched, workers=2, flags=["--min-np", "2"])
    assert done.code == 0, done.output
    assert [exited for exited in done.kinds("worker_exited") if "signal 9" in str(exited)], done.output
    assert done.said() == [{"rates": [0.01, 0.01, 0.005, 0.0025]}] * 2, done.output
    warning = "EarlyStopping (loss_epoch), ReduceLROnPlateau (loss_epoch): watched over the rest of epoch 1 alone"
    assert done.output.count(warning) == done.output.count("watched over the rest") == (watched == "training"), done.output


@pytest.mark.parametrize(
    "setting, value, batches, validations",
    [
        ("val_check_interval", 3, 8, [3, 6]),
        ("val_check_interval", 7, 8, [7]),
        ("val_check_interval", 0.5, 8, [4, 8]),
        ("limit_train_batches", 7, 7, [7]),
        ("limit_train_batches", 0.8, 6, [6]),
    ],
)
def test_lightning_counts_the_batches_of_an_epoch_over_a_loss(job, setting, value, batches, validations):
    """A rank dies after five of eight batches; the settings mean the epoch, and not the rest of it that is left."""
    needs("lightning")
    done = job("lightning_counted.py", setting, str(value), workers=2, flags=["--min-np", "2"])
    assert done.code == 0, done.output
    assert [exited for exited in done.kinds("worker_exited") if "signal 9" in str(exited)], done.output
    expected = [[epoch, batch] for epoch in range(3) for batch in validations]
    assert done.said() == [{"trained": [batches] * 3, "validated": expected, "steps": [3 * batches]}] * 2, done.output


@pytest.mark.parametrize("workers", [3, 2])
def test_accelerate_goes_on_in_process(job, workers):
    """Of two workers one is left: a world of one rank, and of two again."""
    needs("accelerate")
    end = ends_of(job("accelerate_survivor.py", workers=workers, flags=["--min-np", "1"]), workers)[0]
    assert end["epochs"] == 3 and end["seen"] == [240] * 3, "each sample once an epoch"


def test_accelerate_gathers_each_sample_of_an_elastic_sampler_once(job):
    needs("accelerate")
    done = job("accelerate_gathered.py", workers=3)
    assert done.code == 0, done.output
    ends = done.said()
    assert len(ends) == 3 and ends[0] == ends[1] == ends[2], done.output
    for one in ends[0]["passes"]:
        left = list(range(one["first"], one["length"]))
        of_rank = -(-len(left) // 3)
        if one["drop_last"] and of_rank % 4:
            left = left[: of_rank // 4 * 4 * 3]
        assert one["numbers"] == left, one


def test_accelerate_divides_no_loader_with_an_elastic_sampler_once_more(job):
    needs("accelerate")
    done = job("accelerate_batches.py", workers=2)
    assert done.code == 0, done.output
    ends = done.said()
    assert len(ends) == 2, done.output
    for end in ends:
        for name in ("sampler", "batch sampler", "prepared before"):
            assert end[name] == list(range(19)) + [0], f"{name}: each sample, and one more so that both ranks have equally many"
        for name in ("batches", "no batches", "batch sampler as sampler"):
            assert "give DataLoader(data, batch_size, sampler=sampler)" in end[name], end
        assert len(end["without"]) < 2 * 19, "accelerate divides a loader without an elastic sampler"


def test_a_commit_between_two_steps_of_accelerate_is_refused(job):
    needs("accelerate")
    done = job("accelerate_accumulated.py", workers=2)
    assert done.code == 0, done.output
    ends = done.said()
    assert len(ends) == 2, done.output
    for end in ends:
        assert end["refusals"][2] == [None, None], "the third batch makes the step"
        for refusal in end["refusals"][0] + end["refusals"][1]:
            assert "if accelerator.sync_gradients: state.commit()" in refusal, end


@pytest.mark.parametrize("case", ["forbidden", "accelerator", "before"])
def test_a_rank_that_accelerate_would_train_apart_from_the_others_is_refused(job, case):
    needs("transformers")
    done = job("accelerate_apart.py", case, workers=2, environment={"CUDA_VISIBLE_DEVICES": ""})
    assert done.code == 0, done.output
    first, second = (said["refusal"] for said in sorted(done.said(), key=lambda said: said["rank"]))
    if case == "accelerator":
        assert "rank 0 has no accelerator, and rank 1 trains on meta" in first and second is None, done.output
    else:
        assert "rank 0 would train by itself on cpu: accelerate has found 1 of 2 ranks" in first, done.output
        assert "rank 1 would train by itself on cpu" in second, done.output


def test_the_trainer_of_transformers_begins_an_epoch_where_a_dropped_batch_is_left(job):
    needs("transformers")
    done = job("transformers_dropped.py", workers=2)
    assert done.code == 0, done.output
    ends = done.said()
    assert len(ends) == 2, done.output
    for end in ends:
        assert end["steps"] == 6 and end["sizes"] == [4] * 6, end
        assert end["epochs"] == 7, "each epoch has one whole batch, and the first one none"
        assert "an epoch has no batch of 4 samples for each of 2 ranks" in end["refusal"], end


def test_the_trainer_of_transformers_trains_each_sample_once_where_it_is_to_dispatch_batches(job):
    needs("transformers")
    done = job("transformers_dispatched.py", workers=2)
    assert done.code == 0, done.output
    assert sorted(number for said in done.said() for number in said["trained"]) == list(range(16)), done.output


@pytest.mark.parametrize("short_from, steps_per_commit", [(0, 1), (3, 2)])
def test_the_trainer_of_transformers_counts_the_batches_that_it_finds_small_enough(job, short_from, steps_per_commit):
    """Also where memory is short after a step that is not committed: it is made again, in smaller batches."""
    needs("transformers")
    done = job("transformers_found.py", str(short_from), str(steps_per_commit), workers=2, flags=["--min-np", "2"])
    assert done.code == 0, done.output
    assert [exited for exited in done.kinds("worker_exited") if "signal 9" in str(exited)], done.output
    assert done.said() == [{"found": 2, "epochs": 2, "times": [2] * 32}] * 2, done.output


def test_the_trainer_of_transformers_goes_on_in_process(job):
    needs("transformers")
    end = ends_of(job("transformers_survivor.py", workers=3, flags=["--min-np", "1"]), 3)[0]
    assert end["steps"] == 70 and end["rate"] == 0, "the scheduler counts all steps"
    assert end["losses"] == sorted(end["losses"], reverse=True) and len(end["losses"]) == 7, "it learns on"
    assert end["epochs"] == pytest.approx(1416 / 240), "epochs are the sampler's, each step of two batches but an epoch's last"


@pytest.mark.parametrize("event, strategy", [("evaluate", "steps"), ("save", "steps"), ("evaluate", "epoch")])
def test_the_trainer_of_transformers_does_an_evaluation_and_a_save_again_in_which_a_rank_died(job, event, strategy):
    needs("transformers")
    done = job("transformers_evaluated.py", event, strategy, workers=2)
    assert done.code == 0, done.output
    assert [exited for exited in done.kinds("worker_exited") if "signal 9" in str(exited)], done.output
    due = [2, 4, 6, 8]
    # Each rank has six samples an epoch.
    said = {"loss": due, "eval_loss": due, "saves": due, "sizes": [4, 2] * 4}
    assert done.said() == [said] * 2, done.output


@pytest.mark.parametrize(
    "made, steps_per_commit, after", [("trainer", 1, 1), ("trainer", 100, 3), ("outside", 100, 3)]
)
def test_a_loss_before_the_first_commit_of_transformers_goes_back_to_the_model_as_it_was_made(
    job, made, steps_per_commit, after
):
    """Model, optimiser and schedule are made outside of the training function, so a survivor still has the trained ones."""
    needs("transformers")
    flags = ["--min-np", "2"]
    done = job("transformers_begun.py", made, str(steps_per_commit), "dies", str(after), workers=2, flags=flags)
    assert done.code == 0, done.output
    assert [exited for exited in done.kinds("worker_exited") if "signal 9" in str(exited)], done.output
    ends = done.said()
    assert len(ends) == 2 and all(all(said["begun"]) for said in ends), done.output
    assert all(said["difference"] < 1e-5 for said in ends), ends


def test_the_trainer_of_transformers_that_is_short_of_memory_before_the_first_commit_begins_with_the_model_as_it_was_made(job):
    needs("transformers")
    done = job("transformers_begun.py", "outside", "100", "short", "3", workers=2)
    assert done.code == 0, done.output
    assert [said["begun"] for said in done.said()] == [[True, True]] * 2, done.output


@pytest.mark.parametrize("stage, after", [("none", 0), ("0", 2), ("between", 0), ("1", 2)])
def test_trainings_of_transformers_that_follow_each_other_train_as_without_a_loss(job, stage, after):
    """G-5, also of what the program makes between them of the first one's model."""
    needs("transformers")
    done = job("transformers_stages.py", stage, str(after), workers=2, flags=["--min-np", "2"])
    assert done.code == 0, done.output
    assert bool([exited for exited in done.kinds("worker_exited") if "signal 9" in str(exited)]) == (stage != "none"), done.output
    ends = done.said()
    assert len(ends) == 2 and all(end["steps"] == [4, 4] for end in ends), done.output
    assert all(max(end["differences"]) < 1e-5 for end in ends), ends


def test_a_training_of_transformers_that_begins_from_a_checkpoint_of_the_trainer_goes_on_in_its_data_over_a_loss(job):
    """H-23: the first epoch has 6 steps of 2 ranks, and the checkpoint is of the second one."""
    needs("transformers")
    first = job("transformers_resumed.py", "2", "anew", "0", workers=2)
    assert first.code == 0, first.output
    flags = ["--min-np", "2"]
    done = job("transformers_resumed.py", "8", "resumed", "4", workers=2, flags=flags, state_folder="resumed")
    assert done.code == 0, done.output
    assert [exited for exited in done.kinds("worker_exited") if "signal 9" in str(exited)], done.output
    due = [list(range(begin, begin + 4)) for begin in (8, 12, 16, 20, 0, 4)]
    assert done.said() == [{"steps": 8, "trained": due}] * 2, done.output


def test_a_trainer_without_max_steps_is_refused(tmp_path):
    needs("transformers")
    import torch
    from transformers import TrainingArguments

    import elastic_node.torch as en
    from elastic_node.integrations.transformers import ElasticTrainer, TransformersState

    state = TransformersState(en.ElasticDistributedSampler([{"x": 0.0}]))
    arguments = TrainingArguments(str(tmp_path), use_cpu=True, num_train_epochs=1, report_to=[])
    with pytest.raises(ValueError, match="max_steps"):
        ElasticTrainer(state, model=torch.nn.Linear(1, 1), args=arguments, train_dataset=[{"x": 0.0}])


def test_training_data_that_the_states_sampler_does_not_count_are_refused(job):
    needs("transformers")
    done = job("transformers_refused.py", workers=2)
    assert done.code == 0, done.output
    assert len(done.said()) == 2, done.output
    for refusals in done.said():
        assert "train_dataset is iterable (Stream)" in refusals["stream"], refusals
        assert "train_dataset is iterable (MeasuredStream)" in refusals["measured stream"], refusals
        assert "train_dataset is iterable (Stream)" in refusals["replaced by a stream"], refusals
        for name, samples in {"longer": 32, "shorter": 8, "packed": 4, "replaced": 17}.items():
            expected = f"train_dataset has {samples} samples, and the data set of the state's sampler has 16"
            assert expected in refusals[name], refusals
        assert refusals["the sampler's"] is None, refusals


@pytest.mark.parametrize("made, steps_per_commit", [("inside", 1), ("outside", 1), ("outside", 100)])
def test_early_stopping_of_transformers_counts_on_after_a_loss(job, made, steps_per_commit):
    """With more steps between two commits than there are, training begins anew, and with it the counting."""
    needs("transformers")
    done = job("transformers_stopped.py", made, str(steps_per_commit), workers=2, flags=["--min-np", "2"])
    assert done.code == 0, done.output
    assert [exited for exited in done.kinds("worker_exited") if "signal 9" in str(exited)], done.output
    # The evaluation after the second step is the best one; three worse ones stop the training.
    assert done.said() == [{"steps": 8, "counted": 3, "evaluations": 4}] * 2, done.output
