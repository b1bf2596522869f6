"""Ranks that make the same calls in different orders, as programs of Horovod do. An argument names the case."""

import json
import sys
import time

import numpy

import elastic_node as en


def summed(name, value=1.0):
    return en.allreduce(numpy.full(2, value), op=en.Sum, name=name).tolist()


def launched(name):
    return en.allreduce_async(numpy.ones(2), op=en.Sum, name=name)


def after_an_open_call():
    if en.rank() == 0:
        early = launched("x")
        return [summed("a"), summed("b"), en.synchronize(early).tolist()]
    return [summed("a"), summed("b"), summed("x")]


def of_two_process_sets():
    both = en.add_process_set([0, 1])
    early = launched("x") if en.rank() == 0 else None
    within = en.allreduce(numpy.ones(2), op=en.Sum, name="a", process_set=both).tolist()
    return [within, en.synchronize(early).tolist() if early else summed("x")]


def with_a_computation_between():
    summed("warm")
    done = launched("done")
    while not en.poll(done):
        time.sleep(0.01)
    en.synchronize(done)
    first, second = ("x", "y") if en.rank() == 0 else ("y", "x")
    handles = [launched(first)]
    # Longer than the time after which ranks that wait for each other are told.
    time.sleep(3)
    handles.append(launched(second))
    return [en.synchronize(handle).tolist() for handle in handles]


def waiting_for_each_other():
    early = launched("x" if en.rank() == 0 else "y")
    common = summed("common")
    begin = time.monotonic()
    try:
        en.synchronize(early)
    except en.CollectiveError as error:
        return [common, str(error), time.monotonic() - begin, summed("afterwards")]


def two_heads(name_of):
    """Rank 1 has no use for one head, so the bucket with it comes late. Metrics are averaged before it."""
    import torch

    import elastic_node.torch as hvd

    torch.manual_seed(0)
    body, heads = torch.nn.Linear(4, 4), [torch.nn.Linear(4, 1) for _ in range(2)]
    model, inputs = torch.nn.ModuleList([body, *heads]), torch.ones(8, 4)
    own_heads = heads if hvd.rank() == 0 else heads[:1]
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters())
    metrics = []
    for _ in range(3):
        optimizer.zero_grad()
        loss = sum(head(body(inputs)) for head in own_heads).square().mean()
        loss.backward()
        metrics += [hvd.allreduce(torch.full((), float(hvd.rank())), name=name_of(name)).item() for name in ("loss", "mean")]
        optimizer.step()
    return [metrics, [parameter.tolist() for parameter in model.parameters()]]


def two_heads_with_named_metrics():
    return two_heads(lambda name: name)


def two_heads_with_nameless_metrics():
    return two_heads(lambda name: None)


def sparse_gradients_of_one_rank():
    """In its first steps rank 1 has no gradient of the embedding, and cannot know that others' are sparse. Rank 0 has none of
    the second embedding then."""
    import torch

    import elastic_node.torch as hvd

    embeddings = torch.nn.ModuleList([torch.nn.Embedding(4, 1, sparse=True) for _ in range(2)])
    for embedding in embeddings:
        torch.nn.init.zeros_(embedding.weight)
    plain = torch.optim.SGD(embeddings.parameters(), lr=1.0)
    optimizer = hvd.DistributedOptimizer(plain, embeddings.named_parameters(), op=hvd.Sum)
    kinds = set()
    for step in range(3):
        optimizer.zero_grad()
        for number, embedding in enumerate(embeddings):
            if step == 2 or number == hvd.rank():
                embedding(torch.tensor([hvd.rank(), 3])).sum().backward()
        optimizer.step()
        kinds |= {embedding.weight.grad.is_sparse for embedding in embeddings}
    return [[embedding.weight.flatten().tolist() for embedding in embeddings], sorted(kinds)]


def two_optimizers_alike(steps=3):
    """Both are on their way at one time, and each average is of one optimiser's gradients."""
    import torch

    import elastic_node.torch as hvd

    layers = [torch.nn.Linear(2, 1, bias=False) for _ in range(2)]
    for layer in layers:
        torch.nn.init.zeros_(layer.weight)
    optimizers = [hvd.DistributedOptimizer(torch.optim.SGD(layer.parameters(), lr=1.0)) for layer in layers]
    for _ in range(steps):
        (layers[0](torch.ones(1, 2)) + 10 * layers[1](torch.ones(1, 2))).sum().backward()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
    return [layer.weight.tolist() for layer in layers]


def steps_that_are_given_up():
    """Gradients are dropped while they are on their way, with their optimiser or without. The next step has the same names."""
    import torch

    import elastic_node.torch as hvd

    layer = torch.nn.Linear(2, 1, bias=False)
    torch.nn.init.zeros_(layer.weight)

    def optimizer_on_its_way():
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD(layer.parameters(), lr=1.0))
        layer(torch.ones(1, 2)).sum().backward()
        layer.weight.grad = None
        return optimizer

    for _ in range(10):
        optimizer_on_its_way()._reducer.hooks[layer.weight].remove()
    optimizer = optimizer_on_its_way()
    for _ in range(10):
        optimizer.load_state_dict(optimizer.state_dict())
        layer(torch.ones(1, 2)).sum().backward()
        layer.weight.grad = None
    optimizer.load_state_dict(optimizer.state_dict())
    layer(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    return layer.weight.tolist()


CASE = globals()[sys.argv[1]]


@en.elastic.run
def train(state):
    return CASE()


en.init()
print(json.dumps({"rank": en.rank(), "said": train(en.elastic.ObjectState())}), flush=True)
