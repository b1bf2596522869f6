"""C-2: with logical shards, the result of training depends neither on the number of workers, nor on their
failures."""

import random
import re
import subprocess
import sys

import numpy
import pytest

from conftest import PATIENCE_S, ROOT
from elastic_node import _context, _native
from elastic_node._shards import ShardedSampler, ShardFold

FOLDER = ROOT / "examples" / "python"
EXAMPLES = [
    ("numpy_digits.py", "numpy"),
    ("torch_sharded_digits.py", "torch"),
    ("torch_ddp_digits.py", "torch"),
]
#: 36 steps; a worker is lost after 20 commits.
TRAINING = ["--epochs", "3", "--shards", "8"]


class World:
    """Stands for the session: places are looked up here."""

    shards = None

    def __init__(self, monkeypatch):
        self.rank, self.size = 0, 1
        monkeypatch.setattr(_context, "is_initialized", lambda: True)
        monkeypatch.setattr(_context, "session", lambda: self)
        monkeypatch.setattr(_context, "place", lambda: (self.rank, self.size, 0, 1, 0, 1))
        self.carried = None

    def carry_shards(self, shards):
        self.carried = shards


@pytest.fixture
def world(monkeypatch):
    return World(monkeypatch)


def digest(output):
    found = re.search(r"sha256 ([0-9a-f]{64})", output)
    assert found, output
    return found[1]


@pytest.mark.parametrize("seed", range(10))
def test_c_2_a_step_has_the_same_shards_in_any_world(world, seed):
    random.seed(seed)
    shards, length = random.randrange(1, 9), random.randrange(1, 200)
    batch = shards * random.randrange(1, 9) + random.randrange(3)
    state = ShardedSampler(range(length), batch, shards, seed=5).state_dict()
    alone = ShardedSampler(range(length), batch, shards, seed=5)
    seen = []
    for whole in alone.steps():
        world.size, dealt = random.randrange(1, shards + 1), []
        for world.rank in range(world.size):
            sampler = ShardedSampler(range(length), batch, shards, seed=5)
            sampler.load_state_dict(state)
            step = next(sampler.steps())
            assert step.shards and step.global_len == whole.global_len
            dealt += step.shards
        world.rank, world.size = 0, 1
        assert dealt == whole.shards
        assert sum(shard.weight for shard in dealt) == pytest.approx(shards)
        seen += [index for shard in dealt for index in shard.indices]
        state = sampler.state_dict()
    assert sorted(seen) == list(range(length))


def test_each_shard_and_step_has_a_random_stream_of_its_own(world):
    sampler = ShardedSampler(range(100), 20, 4)
    streams = []
    for epoch in range(2):
        sampler.set_epoch(epoch)
        streams += [shard.seed for step in sampler.steps() for shard in step.shards]
    assert len(set(streams)) == 2 * 5 * 4


@pytest.mark.parametrize("shards", [1, 2, 3, 7, 8, 13])
def test_c_2_the_fold_has_the_same_bits_in_any_world(shards):
    values = numpy.random.default_rng(0).normal(size=(shards, 50)).astype(numpy.float32)
    results = []
    for world in range(1, shards + 1):
        whole = ShardFold(_native.ShardDeal(shards, 1), 0)
        for rank in range(world):
            own = ShardFold(_native.ShardDeal(shards, world), rank)
            while own.next < own.end:
                own.add(values[own.next].copy())
            for node, partial in own._nodes:
                whole.push(node, partial)
        (result,) = whole.partial
        results.append(result.tobytes())
    assert len(set(results)) == 1


@pytest.mark.parametrize("counts", [[5, 1, 2], [1, 6, 1], [1, 1, 6]])
def test_c_2_the_drivers_deal_of_shards_changes_who_computes_them_and_nothing_else(world, monkeypatch, counts):
    alone = next(ShardedSampler(range(100), 24, 8, seed=5).steps()).shards
    monkeypatch.setattr(_context, "_shard_counts", counts)
    world.size, dealt = 3, []
    for world.rank, count in enumerate(counts):
        own = next(ShardedSampler(range(100), 24, 8, seed=5).steps()).shards
        assert len(own) == count == world.carried
        dealt += own
    assert dealt == alone
    values = numpy.random.default_rng(0).normal(size=(8, 50)).astype(numpy.float32)
    deals = [_context.shard_deal(8), _native.ShardDeal(8, 1)]
    results = []
    for deal in deals:
        whole = ShardFold(_native.ShardDeal(8, 1), 0)
        for rank in range(deal.world):
            own = ShardFold(deal, rank)
            while own.next < own.end:
                own.add(values[own.next].copy())
            assert [node for node, _ in own._nodes] == deal.nodes_of(rank)
            for node, partial in own._nodes:
                whole.push(node, partial)
        results.append(whole.partial[0].tobytes())
    assert results[0] == results[1]
    # Of another number of shards, or in another world, the driver's counts say nothing.
    assert _context.shard_deal(9).of(0) == (0, 3)


def test_plans_that_cannot_be_carried_out_are_refused_with_the_way_out(world):
    world.size = 9
    with pytest.raises(ValueError, match="--max-np 8"):
        ShardedSampler(range(100), 16, 8).shards
    world.size = 1
    with pytest.raises(ValueError, match="--shards to the driver"):
        ShardedSampler(range(100), 16).shards
    with pytest.raises(ValueError, match="larger batch"):
        ShardedSampler(range(100), 4, 8).shards
    world.shards = 4
    assert ShardedSampler(range(100), 16).shards == 4
    with pytest.raises(ValueError, match="driver's --shards is 4"):
        ShardedSampler(range(100), 16, 8).shards
    sampler = ShardedSampler(range(100), 16)
    next(sampler.steps())
    world.shards = 8
    with pytest.raises(ValueError, match="trained with 4 shards"):
        next(sampler.steps())
    with pytest.raises(ValueError, match="global batch of 16"):
        ShardedSampler(range(100), 32).load_state_dict(sampler.state_dict())


@pytest.mark.parametrize("program, module", EXAMPLES)
def test_c_2_an_example_that_loses_a_worker_has_the_weights_of_one_undisturbed_worker(job, program, module):
    pytest.importorskip(module)
    alone = subprocess.run(
        [sys.executable, str(FOLDER / program), *TRAINING],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        env={"OMP_NUM_THREADS": "1"},
    )
    assert alone.returncode == 0, alone.stderr
    done = job("losing_a_worker.py", str(FOLDER / program), *TRAINING, workers=3, flags=["--min-np", "2"])
    assert done.code == 0, done.output
    assert [event for event in done.kinds("worker_exited") if "signal 9" in str(event)], done.output
    assert digest(done.output) == digest(alone.stdout), done.output


def test_c_2_sharded_gradients_are_those_of_torch_alone_where_shards_leave_parameters_out_or_are_clipped(job):
    pytest.importorskip("torch")
    said = []
    for world in (1, 2, 3):
        done = job("sharded_gradients.py", workers=world, flags=["--max-restarts", "0"])
        assert done.code == 0 and len(done.said()) == world, done.output
        said += done.said()
    for case in said[0]:
        bits = {of[case][0] for of in said}
        differences = [of[case][1] for of in said]
        assert len(bits) == 1 and max(differences) < 1e-4, (case, bits, differences)


def test_the_optimizer_refuses_what_shards_cannot_be_combined_with():
    torch = pytest.importorskip("torch")
    import elastic_node.torch as en

    def made(**settings):
        return en.DistributedOptimizer(torch.optim.SGD([torch.zeros(3, requires_grad=True)], lr=0.1), **settings)

    with pytest.raises(ValueError, match="at least 1"):
        made(shards=0)
    with pytest.raises(ValueError, match="a backward pass for each shard"):
        made(shards=2, backward_passes_per_step=2)
    with pytest.raises(ValueError, match="leave process_set out"):
        made(shards=2, process_set=en.ProcessSet([0]))


def test_the_optimizer_names_missing_and_superfluous_backward_passes():
    torch = pytest.importorskip("torch")
    import elastic_node.torch as en

    en.init()
    weight = torch.zeros(3, requires_grad=True)
    optimizer = en.DistributedOptimizer(torch.optim.SGD([weight], lr=1.0), shards=2)
    (weight.sum() * 1).backward()
    with pytest.raises(AssertionError, match="1 of this rank's shards have no gradient"):
        optimizer.step()
    for factor in (1, 2):
        (weight.sum() * factor).backward()
    optimizer.step()
    assert weight.tolist() == [-1.5] * 3
    for factor in (1, 2):
        (weight.sum() * factor).backward()
    with pytest.raises(AssertionError, match="more backward passes than this rank has shards"):
        weight.sum().backward()
    en.shutdown()
