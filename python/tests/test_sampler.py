"""H-23: every sample is given to one rank once an epoch, whatever happens to the world."""

import random

import pytest

from elastic_node import _context
from elastic_node.elastic import ElasticSampler, ShardedSampler


class World:
    """Stands for the session: places are looked up here."""

    def __init__(self, monkeypatch):
        self.rank, self.size = 0, 1
        monkeypatch.setattr(_context, "is_initialized", lambda: True)
        monkeypatch.setattr(_context, "place", lambda: (self.rank, self.size, 0, 1, 0, 1))


@pytest.fixture
def world(monkeypatch):
    return World(monkeypatch)


def take(world, samplers, batch_size):
    """One step on every rank; the samples, and the weights."""
    world.size = len(samplers)
    batches = []
    for world.rank, sampler in enumerate(samplers):
        batches.append(next(sampler.batches(batch_size), None))
    return batches


@pytest.mark.parametrize("seed", range(20))
def test_each_sample_once_over_changing_worlds(world, seed):
    random.seed(seed)
    length = random.randrange(1, 200)
    state = {"epoch": 3, "processed_num": 0}
    seen = []
    while True:
        size, batch_size = random.randrange(1, 6), random.randrange(1, 9)
        samplers = [ElasticSampler(range(length), seed=5) for _ in range(size)]
        for sampler in samplers:
            sampler.load_state_dict(state)
        batches = take(world, samplers, batch_size)
        assert len({batch is None for batch in batches}) == 1, "all ranks make the step, or none"
        if batches[0] is None:
            break
        seen += [index for batch in batches for index in batch.indices]
        assert sum(batch.weight for batch in batches) == pytest.approx(size)
        state = samplers[0].state_dict()
        assert all(sampler.state_dict() == state for sampler in samplers)
    assert sorted(seen) == list(range(length))


@pytest.mark.parametrize("length, size", [(9, 4), (1, 4), (8, 4), (0, 2), (10, 3)])
def test_as_a_loaders_sampler_all_ranks_get_equally_many(world, length, size):
    """Horovod's quirk 7: 9 samples, of which 8 are done, on 4 ranks failed there."""
    world.size = size
    given = []
    for world.rank in range(size):
        sampler = ElasticSampler(range(length), shuffle=False)
        given.append(list(sampler))
        assert len(given[-1]) == len(sampler)
    together = [index for part in given for index in part]
    assert set(together) == set(range(length))
    assert len(together) - length < size


def test_recorded_batches_are_not_given_again(world):
    sampler = ElasticSampler(range(10), shuffle=False)
    world.size = 2
    sampler.record_batch(0, 2)
    assert sampler.remaining_indices == list(range(4, 10))
    copy = ElasticSampler(range(10), shuffle=False)
    copy.load_state_dict(sampler.state_dict())
    world.size = 3
    assert list(copy) == [4, 7]
    sampler.set_epoch(1)
    assert len(sampler.remaining_indices) == 10


def test_a_second_pass_over_an_epoch_that_is_done_is_warned_of(monkeypatch, caplog):
    def passes(how):
        """The warnings of a first pass in a generation, of a second one, and of one after `set_epoch`."""
        sampler = ElasticSampler(range(10)) if how != "steps" else ShardedSampler(range(10), 5, 1)
        warned = []
        for epoch in (None, None, 1):
            if epoch is not None:
                sampler.set_epoch(epoch)
            caplog.clear()
            if how == "iter":
                sampler.record_batch(0, len(list(sampler)))
            elif how == "batches":
                list(sampler.batches(2))
            elif how == "next":
                while next(sampler.batches(2), None) is not None:
                    pass
            else:
                list(sampler.steps())
            warned.append([record.getMessage() for record in caplog.records])
        return warned

    monkeypatch.setattr(_context, "is_initialized", lambda: False)
    due = ["epoch 0 is done, and another pass over it has no samples: call set_epoch(1) first"]
    for how in ("iter", "batches", "next", "steps"):
        assert passes(how) == [[], due, []], how
    done = ElasticSampler(range(10))
    done.record_batch(0, 10)
    assert not caplog.clear() and list(done) == [] and not caplog.records, "a generation may begin behind the last step"


@pytest.mark.parametrize("how", ["iter", "batches", "steps"])
def test_an_epoch_that_a_generation_finds_under_way_goes_on(monkeypatch, how):
    """Programs that call `set_epoch` at the start of an epoch do so again after each loss."""

    def walked(sampler, batches):
        if how == "iter":
            iter(sampler)
            sampler.record_batch(0, 2 * batches)
        else:
            steps = sampler.batches(2) if how == "batches" else sampler.steps()
            for _ in range(batches):
                next(steps)

    def made():
        return ShardedSampler(range(10), 2, 1) if how == "steps" else ElasticSampler(range(10))

    monkeypatch.setattr(_context, "is_initialized", lambda: False)
    generation = 1
    monkeypatch.setattr(_context, "generation", lambda: generation)
    sampler = made()
    sampler.set_epoch(0)
    walked(sampler, 2)
    generation, newcomer = 2, made()
    newcomer.load_state_dict(sampler.state_dict())
    for each in (sampler, newcomer):
        each.set_epoch(0)
        assert each.processed_num == 4, "the epoch goes on, on each rank"
        walked(each, 3)
        assert each.processed_num == 10
    generation = 3
    sampler.set_epoch(0)
    assert sampler.processed_num == 10, "the epoch was done before the loss"
    sampler.set_epoch(1)
    assert (sampler.epoch, sampler.processed_num) == (1, 0)
    walked(sampler, 1)
    sampler.set_epoch(1)
    assert sampler.processed_num == 0, "the program begins the epoch anew"


@pytest.mark.parametrize("how", ["iter", "batches", "steps"])
def test_another_pass_under_the_number_of_one_that_is_over_is_begun_or_warned_of(monkeypatch, caplog, how):
    """A validation within an epoch, or rounds over the data, with one number for several passes."""

    def made():
        return ShardedSampler(range(10), 2, 1) if how == "steps" else ElasticSampler(range(10))

    def walk(sampler):
        """A pass, with a commit within its last step; the content of that commit, and the number of samples."""
        before, within = sampler.processed_num, None
        if how == "iter":
            for _ in sampler:
                sampler.record_batch(0, 1)
                within = sampler.state_dict()
        else:
            for _ in sampler.batches(2) if how == "batches" else sampler.steps():
                within = sampler.state_dict()
        return within, sampler.processed_num - before

    def after_a_loss(content):
        """What a newcomer's first pass of epoch 0 is given, with the warnings."""
        nonlocal generation
        generation, newcomer = generation + 1, made()
        newcomer.load_state_dict(content)
        caplog.clear()
        newcomer.set_epoch(0)
        return walk(newcomer)[1], [record.getMessage() for record in caplog.records]

    monkeypatch.setattr(_context, "is_initialized", lambda: False)
    generation = 1
    monkeypatch.setattr(_context, "generation", lambda: generation)
    sampler = made()
    sampler.set_epoch(0)
    within, given = walk(sampler)
    assert given == 10 and after_a_loss(within) == (0, []), "a loss within the last step: the pass comes by again"
    given, (warning,) = after_a_loss(sampler.state_dict())
    assert given == 0 and "set_epoch(0) leaves it done" in warning and "a number of its own" in warning
    generation = 1
    sampler.set_epoch(0)
    within, given = walk(sampler)
    assert given == 10 and after_a_loss(within) == (0, []), "a pass that is begun anew is one, too"
    given, (warning,) = after_a_loss(sampler.state_dict())
    assert given == 10 and "set_epoch(0) begins it anew" in warning and "a number of its own" in warning


@pytest.mark.parametrize("after", [1, 2, 4])
def test_rounds_under_one_number_have_all_samples_over_a_loss_within_them(job, after):
    """The survivor has seen that the program begins a pass anew, also where no commit knows it yet."""
    done = job("rounds.py", str(after), workers=2, flags=["--min-np", "2"])
    assert done.code == 0, done.output
    assert [exited for exited in done.kinds("worker_exited") if "signal 9" in str(exited)], done.output
    assert done.said() == [{"seen": [16, 16, 16]}] * 2, done.output


def test_an_epoch_that_is_set_at_the_end_of_the_one_before_and_at_its_start_is_one_pass(monkeypatch, caplog):
    monkeypatch.setattr(_context, "is_initialized", lambda: False)
    generation = 1
    monkeypatch.setattr(_context, "generation", lambda: generation)
    sampler = ElasticSampler(range(10))
    for epoch in range(3):
        sampler.set_epoch(epoch)
        assert sum(len(batch.indices) for batch in sampler.batches(5)) == 10
        sampler.set_epoch(epoch + 1)
    list(sampler.batches(5))
    generation = 2
    sampler.set_epoch(3)
    assert sampler.processed_num == 10 and "leaves it done" in caplog.text


def test_a_size_that_no_batch_has_is_refused_with_its_value(world):
    sampler = ElasticSampler(range(10), shuffle=False)
    for size in (0, -3):
        with pytest.raises(ValueError, match=f"batch_size must be at least 1, and is {size}"):
            next(sampler.batches(size))
    with pytest.raises(ValueError, match="batch_size must not be negative, and is -3"):
        sampler.record_batch(0, -3)
    sampler.record_batch(0, 0)
    assert sampler.processed_num == 0


def test_epochs_have_orders_of_their_own(world):
    sampler = ElasticSampler(range(50), seed=1)
    first = list(sampler)
    assert first == list(sampler)
    sampler.set_epoch(1)
    assert first != list(sampler)
    assert sorted(first) == list(range(50))


OTHER_DATA = [
    (dict(dataset=range(130)), "130 samples in the order of seed 5"),
    (dict(dataset=range(90)), "90 samples in the order of seed 5"),
    (dict(seed=6), "100 samples in the order of seed 6"),
    (dict(shuffle=False), "100 samples in its own order"),
]


def sampler_of(kind, **other):
    given = {"dataset": range(100), "seed": 5, **other}
    return ElasticSampler(**given) if kind == "elastic" else ShardedSampler(global_batch=4, shards=2, **given)


@pytest.mark.parametrize("kind", ["elastic", "sharded"])
@pytest.mark.parametrize("other, has", OTHER_DATA)
def test_a_place_in_another_data_set_is_refused_or_the_epoch_begins_anew(kind, other, has, caplog):
    state = {**sampler_of(kind).state_dict(), "epoch": 2, "processed_num": 40}
    with pytest.raises(ValueError, match=f"is of a data set of 100 samples in the order of seed 5, and this rank has .* {has}"):
        sampler_of(kind, **other).load_state_dict(state)
    assert caplog.records == []
    anew = sampler_of(kind, **other, begins_anew=True)
    anew.load_state_dict(state)
    assert (anew.epoch, anew.processed_num) == (2, 0)
    assert "epoch 2 begins anew" in caplog.text and has in caplog.text
    same = sampler_of(kind, begins_anew=True)
    same.load_state_dict(state)
    assert (same.epoch, same.processed_num) == (2, 40)


@pytest.mark.parametrize("kind", ["elastic", "sharded"])
@pytest.mark.parametrize("processed", [-5, 101])
def test_a_place_outside_of_the_data_set_is_refused(kind, processed):
    state = {**sampler_of(kind).state_dict(), "processed_num": processed}
    with pytest.raises(ValueError, match=f"processed_num is {processed}, of 100 samples"):
        sampler_of(kind).load_state_dict(state)


def test_a_state_of_an_earlier_release_says_nothing_of_its_data_set_and_is_taken():
    sampler = sampler_of("elastic")
    sampler.load_state_dict({"epoch": 1, "processed_num": 30})
    assert (sampler.epoch, sampler.processed_num) == (1, 30)


def test_the_state_of_an_elastic_sampler_is_none_of_a_sharded_one():
    with pytest.raises(ValueError, match="one of an ElasticSampler"):
        sampler_of("sharded").load_state_dict(sampler_of("elastic").state_dict())
