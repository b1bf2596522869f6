"""Ranks that differ in what must be the same on all of them, and what each is told. An argument names the case."""

import json
import os
import signal
import sys
from pathlib import Path

import numpy
import torch

import elastic_node.torch as hvd

#: There once a worker was lost.
LOST = Path(os.environ["CONTROL"]) / "lost"

hvd.init()
#: Whether this process is the one that is unlike the others.
UNLIKE = os.environ["RANK"] == "1" or LOST.exists()


def layers():
    torch.manual_seed(3)
    return torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 4))


def order_of(model):
    parameters = list(model.parameters())
    # Two weights, and two biases, change places.
    return parameters[2:] + parameters[:2] if UNLIKE else parameters


def optimizer_of(model, is_named=True, **settings):
    plain = torch.optim.SGD(order_of(model), lr=0.1, momentum=0.9)
    return hvd.DistributedOptimizer(plain, model.named_parameters() if is_named else None, **settings)


def step_of(model, optimizer, passes=1):
    for _ in range(passes):
        model(torch.ones(1, 4)).sum().backward()
    optimizer.step()


def orders(state):
    model = layers()
    step_of(model, optimizer_of(model))


def orders_by_shards(state):
    model = layers()
    step_of(model, optimizer_of(model, shards=4), passes=2)


def orders_of_a_plain_optimizer(state):
    state.model = layers()
    state.optimizer = torch.optim.SGD(order_of(state.model), lr=0.1)
    state.commit()


def orders_in_a_broadcast(state):
    model = layers()
    hvd.broadcast_optimizer_state(torch.optim.SGD(order_of(model), lr=0.1), model=model)


def sets(state):
    first = hvd.rank() // 2 * 2
    hvd.add_process_set([first, first + 1])


def sets_in_another_order(state):
    for ranks in ([0, 1], [0, 2]) if not UNLIKE else ([0, 2], [0, 1]):
        hvd.add_process_set(ranks)


def shards(state):
    own = 2 if UNLIKE else 1
    hvd.allreduce_shards([numpy.ones(3)] * own, 2 * own)


def shards_of_a_sampler(state):
    state.sampler = hvd.elastic.ShardedSampler(range(48), global_batch=12, shards=4 if UNLIKE else 2)
    next(state.sampler.steps())
    state.commit()


def shards_of_ddp(state):
    class Replica(torch.nn.Linear):
        """As much of DistributedDataParallel as the hook takes before the first pass."""

        def register_comm_hook(self, _state, hook):
            pass

    hook = hvd.register_shard_hook(Replica(2, 2), shards=4 if UNLIKE else 2)
    next(hook.passes(None))


def batches(state):
    state.sampler = hvd.elastic.ElasticSampler(range(40))
    for _ in state.sampler.batches(11 if UNLIKE else 10):
        pass
    assert state.sampler.processed_num == 40, "it is not the number of samples that tells"
    state.commit()


def recorded_batches(state):
    state.sampler = hvd.elastic.ElasticSampler(range(40))
    state.sampler.record_batch(0, 3 if UNLIKE else 2)
    state.commit()


def alike(state):
    """What is no difference."""
    model = layers()
    # A survivor has added a layer since, without a name; a newcomer makes the optimiser with it.
    first, second = (list(layer.named_parameters(prefix=str(number))) for number, layer in enumerate(model))
    named = first + second if UNLIKE else first
    plain = torch.optim.SGD([parameter for _, parameter in named], lr=0.1)
    optimizer = hvd.DistributedOptimizer(plain, named, shards=hvd.size())
    if not UNLIKE:
        optimizer.add_param_group({"params": [parameter for _, parameter in second]})
    step_of(model, optimizer)
    state.model, state.optimizer = model, torch.optim.SGD(model.parameters(), lr=0.1)
    state.sampler = hvd.elastic.ElasticSampler(range(40))
    for _ in state.sampler.batches(5):
        state.commit()


def a_rank_that_has_joined(state):
    model = layers()
    if UNLIKE:
        hvd.join()
    else:
        step_of(model, hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1)))
        hvd.join()


def newcomer(state):
    """The first generation agrees, and a process that takes a lost one's place differs."""
    if not LOST.exists():
        step_of(MODEL, state.optimizer)
        state.commit()
        if hvd.rank() == 1:
            LOST.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        while True:
            hvd.barrier()
    step_of(MODEL, state.optimizer)


def said_of(case, state):
    try:
        case(state)
    except ValueError as error:
        return str(error)
    return None


@hvd.elastic.run
def train(state):
    return said_of(CASE, state)


CASE = globals()[sys.argv[1]]
state = hvd.elastic.TorchState()
if CASE is newcomer:
    UNLIKE = LOST.exists()
    MODEL = layers()
    state.model, state.optimizer = MODEL, optimizer_of(MODEL)
print(json.dumps({"rank": hvd.rank(), "said": train(state)}), flush=True)
