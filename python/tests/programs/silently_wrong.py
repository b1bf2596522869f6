"""Programs that once trained wrong without any error: each case on every rank of a job. An argument names the
case."""

import json
import sys
import warnings

import torch

import elastic_node.torch as hvd


def model_and_data():
    torch.manual_seed(3)
    model = torch.nn.Linear(4, 1)
    data = torch.randn(8, 4, generator=torch.Generator().manual_seed(hvd.rank()))
    return model, data


def drift(model):
    """By how much parameters differ between ranks."""
    flat = torch.cat([parameter.detach().reshape(-1) for parameter in model.parameters()])
    all_flat = hvd.allgather(flat.unsqueeze(0))
    return (all_flat - all_flat[0]).abs().max().item()


def train(model, data, optimizer, steps=5, scheduler=None):
    for _ in range(steps):
        optimizer.zero_grad()
        (model(data) ** 2).mean().backward()
        optimizer.step()
        if scheduler is not None:
            scheduler.step()


def scheduler_made_before():
    model, data = model_and_data()
    plain = torch.optim.SGD(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.StepLR(plain, 2)
    optimizer = hvd.DistributedOptimizer(plain)
    train(model, data, optimizer, scheduler=scheduler)
    assert optimizer.param_groups[0]["lr"] < 0.1, "the scheduler reaches the distributed optimiser"
    # A state that is loaded replaces the groups: the scheduler still reaches them.
    optimizer.load_state_dict(optimizer.state_dict())
    scheduler.base_lrs = [0.5]
    plain.param_groups[0]["lr"] = 0.5
    assert optimizer.param_groups[0]["lr"] == 0.5
    return drift(model)


def scheduler_made_after():
    model, data = model_and_data()
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1))
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2)
    train(model, data, optimizer, scheduler=scheduler)
    assert optimizer.param_groups[0]["lr"] < 0.1
    return drift(model)


def step_replaced_on_the_plain_one():
    model, data = model_and_data()
    plain = torch.optim.SGD(model.parameters(), lr=0.1)
    own_step = plain.step
    plain.step = lambda closure=None: own_step(closure)
    train(model, data, hvd.DistributedOptimizer(plain))
    return drift(model)


def unfrozen_after_wrapping():
    model, data = model_and_data()
    model.bias.requires_grad_(False)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1))
    train(model, data, optimizer, steps=2)
    model.bias.requires_grad_(True)
    train(model, data, optimizer)
    assert model.bias.grad is not None
    return drift(model)


def added_after_wrapping():
    model, data = model_and_data()
    more = torch.nn.Linear(1, 1)
    hvd.broadcast_parameters(more.named_parameters(), root_rank=0)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1))
    train(model, data, optimizer, steps=2)
    optimizer.add_param_group({"params": list(more.parameters())})
    train(torch.nn.Sequential(model, more), data, optimizer)
    return drift(torch.nn.Sequential(model, more))


def closures():
    torch.manual_seed(5)
    model = torch.nn.Linear(4, 1)
    data = torch.randn(8, 4, generator=torch.Generator().manual_seed(hvd.rank()))
    optimizer = hvd.DistributedOptimizer(
        torch.optim.LBFGS(model.parameters(), line_search_fn="strong_wolfe")
    )

    def closure():
        optimizer.zero_grad()
        loss = (model(data) ** 2).mean()
        loss.backward()
        return loss

    for _ in range(3):
        optimizer.step(closure)
    return drift(model)


def two_backward_passes():
    model, data = model_and_data()
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1))
    (model(data) ** 2).mean().backward()
    try:
        (model(data) ** 2).mean().backward()
    except AssertionError as error:
        assert "backward_passes_per_step" in str(error)
    else:
        raise AssertionError("the second gradient was thrown away without a word")
    optimizer.synchronize()
    optimizer.set_backward_passes_per_step(2)
    optimizer.zero_grad()
    for part in data.chunk(2):
        (model(part) ** 2).mean().backward()
    optimizer.step()
    return drift(model)


def committed_between_steps():
    model, data = model_and_data()
    plain = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer = hvd.DistributedOptimizer(plain, backward_passes_per_step=2)
    state = hvd.elastic.TorchState(model=model, optimizer=optimizer)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        for part in data.chunk(2):
            (model(part) ** 2).mean().backward()
            state.commit()
        optimizer.step()
        state.commit()
    texts = [str(warning.message) for warning in told if "a commit between two steps" in str(warning.message)]
    assert len(texts) == 1 and "Commit behind optimizer.step()" in texts[0], told
    return drift(model)


def zero_grad_under_way():
    model, data = model_and_data()
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1))
    (model(data) ** 2).mean().backward()
    try:
        optimizer.zero_grad()
    except AssertionError:
        optimizer.step()
        return drift(model)
    raise AssertionError("gradients on their way were set to zero")


def gradients_changed_under_way():
    def of(change):
        """Whether a step is refused whose gradients were changed on their way; else the model that it was made on."""
        model, data = model_and_data()
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters())
        scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
        scaler.scale((model(data) ** 2).mean()).backward()
        try:
            change(model, optimizer, scaler)
        except RuntimeError as refused:
            assert "call optimizer.synchronize(), then clip" in str(refused), refused
            return None
        return model

    def clip(model):
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)

    def clipped(model, optimizer, scaler):
        clip(model)
        optimizer.step()

    def stepped_by_the_scaler(model, optimizer, scaler):
        scaler.step(optimizer)

    def replaced(model, optimizer, scaler):
        model.weight.grad = 2 * model.weight.grad
        optimizer.step()

    def in_order(model, optimizer, scaler):
        optimizer.synchronize()
        scaler.unscale_(optimizer)
        clip(model)
        with optimizer.skip_synchronize():
            scaler.step(optimizer)

    assert [of(change) for change in (clipped, stepped_by_the_scaler, replaced)] == [None] * 3
    model, data = model_and_data()
    before = torch.nn.utils.parameters_to_vector(model.parameters()).detach().clone()
    (model(data) ** 2).mean().backward()
    for parameter in model.parameters():
        parameter.grad = hvd.allreduce(parameter.grad)
    clip(model)
    gradient = torch.cat([parameter.grad.reshape(-1) for parameter in model.parameters()])
    after = torch.nn.utils.parameters_to_vector(of(in_order).parameters())
    assert torch.allclose(after, before - 0.1 * gradient), "scaled, averaged and clipped as one process would"
    return 0.0


def gradients_of_collectives():
    size, rank = hvd.size(), hvd.rank()

    def gradient(function, shape=(4,)):
        x = torch.ones(shape, requires_grad=True)
        function(x).backward()
        return x.grad

    through = gradient(lambda x: hvd.allreduce(2 * x, op=hvd.Sum).sum() + x.sum())
    assert through.tolist() == [2 * size + 1] * 4, through
    assert gradient(lambda x: hvd.allreduce(x).sum()).tolist() == [1.0] * 4
    assert gradient(lambda x: hvd.synchronize(hvd.allreduce_async(x, op=hvd.Sum)).sum()).tolist() == [size] * 4
    pair = gradient(lambda x: sum(part.sum() for part in hvd.grouped_allreduce([x, 3 * x], op=hvd.Sum)))
    assert pair.tolist() == [4 * size] * 4
    assert gradient(lambda x: hvd.allgather(x * (rank + 1)).sum()).tolist() == [rank + 1] * 4
    assert gradient(lambda x: hvd.broadcast(x, 0).sum()).tolist() == [1.0 if rank == 0 else 0.0] * 4
    assert gradient(lambda x: hvd.alltoall(x).sum(), (2 * size,)).tolist() == [1.0] * 2 * size
    assert gradient(lambda x: hvd.reducescatter(x, op=hvd.Sum).sum(), (2 * size,)).tolist() == [size] * 2 * size
    compressed = gradient(lambda x: hvd.allreduce(x, compression=hvd.Compression.fp16, op=hvd.Sum).sum())
    assert compressed.tolist() == [size] * 4
    for in_place in (hvd.allreduce_, lambda x: hvd.broadcast_(x, 0), lambda x: hvd.grouped_allreduce_([x])):
        try:
            in_place(torch.ones(2, requires_grad=True) * 2)
        except ValueError as error:
            assert "autograd records" in str(error)
        else:
            raise AssertionError("changed in place what autograd records")
    x = torch.ones(2, requires_grad=True)
    y = torch.ones(2)
    product = (x * y).sum()
    hvd.allreduce_(y, op=hvd.Sum)
    try:
        product.backward()
    except RuntimeError as error:
        assert "modified by an inplace operation" in str(error)
    else:
        raise AssertionError("the backward pass used what a collective had changed")
    return 0.0


def positional_arguments():
    size = hvd.size()
    ones = torch.ones(3)
    assert hvd.allreduce(ones, False).tolist() == [size] * 3, "average=False is a sum"
    assert hvd.allreduce(ones, True).tolist() == [1] * 3
    assert hvd.allreduce_(ones.clone(), False, "name").tolist() == [size] * 3
    assert hvd.grouped_allreduce([ones], False)[0].tolist() == [size] * 3
    assert hvd.synchronize(hvd.allreduce_async(ones, False)).tolist() == [size] * 3
    assert hvd.allreduce(ones, None, "scaled", hvd.Compression.none, hvd.Sum, 2.0, 3.0).tolist() == [6 * size] * 3
    assert hvd.reducescatter(torch.ones(size), "rs", hvd.Compression.none, hvd.Sum).tolist() == [size]
    for wrong in ("a name", hvd.Sum):
        try:
            hvd.allreduce(ones, wrong)
        except TypeError as error:
            assert "average must be" in str(error)
        else:
            raise AssertionError("took it for something else")
    return 0.0


def aliases():
    size = hvd.size()
    for count in (2, 100_000):
        t = torch.ones(count)
        hvd.grouped_allreduce_([t, t], op=hvd.Sum)
        assert t.unique().tolist() == [size], t.unique()
        hvd.grouped_allreduce_([t, t], op=hvd.Average, postscale_factor=2.0)
        assert t.unique().tolist() == [2 * size], "scaled once"
        try:
            hvd.grouped_allreduce_([t, t[1:]], op=hvd.Sum)
        except ValueError as error:
            assert "share memory" in str(error)
        else:
            raise AssertionError("reduced a part twice")
    return 0.0


def wrapped_twice():
    model, data = model_and_data()
    plain = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer = hvd.DistributedOptimizer(plain, op=hvd.Sum)
    for again in (optimizer, plain):
        try:
            hvd.DistributedOptimizer(again)
        except ValueError as error:
            assert "already" in str(error)
        else:
            raise AssertionError("gradients would be reduced twice")
    return 0.0


def calls_that_do_not_match():
    rank = hvd.rank()
    for name, call in {
        "shapes": lambda: hvd.allreduce(torch.ones(2 + rank)),
        "ranks": lambda: hvd.broadcast(torch.ones(2), rank),
        "names": lambda: hvd.allreduce(torch.ones(2), name=f"of {rank}"),
        "operations": lambda: hvd.allreduce(torch.ones(2), op=[hvd.Sum, hvd.Max][rank % 2]),
    }.items():
        try:
            call()
        except hvd.HorovodInternalError as error:
            assert "rank 0" in str(error) and "rank 1" in str(error), error
        else:
            raise AssertionError(f"{name} differ, and nobody said so")
    # In another order, but by name: the same ones meet.
    first, second = ("a", "b") if rank == 0 else ("b", "a")
    handles = {name: hvd.allreduce_async(torch.tensor([float(ord(name))]), name=name) for name in (first, second)}
    assert {name: hvd.synchronize(handle).item() for name, handle in handles.items()} == {"a": 97, "b": 98}
    return 0.0


def sync_batch_norm():
    """Two ranks with batches of other sizes against one with all of it, gradients and running statistics too."""
    rank, size = hvd.rank(), hvd.size()
    all_data = 5 + 3 * torch.randn(2 + 6, 3, 4, generator=torch.Generator().manual_seed(7))
    whole, synced = torch.nn.BatchNorm1d(3), hvd.SyncBatchNorm(3)
    parts = all_data.split([2, 6])
    x = (parts[rank] if rank < 2 else parts[1][:0]).clone().requires_grad_()
    y = all_data.clone().requires_grad_()
    weights = torch.arange(float(all_data.numel())).view_as(all_data)
    out, due = synced(x), whole(y)
    start = 0 if rank == 0 else 2
    torch.testing.assert_close(out, due[start : start + len(x)], rtol=1e-4, atol=1e-4)
    (out * weights[start : start + len(x)]).sum().backward()
    (due * weights).sum().backward()
    torch.testing.assert_close(x.grad, y.grad[start : start + len(x)], rtol=1e-3, atol=1e-2)
    torch.testing.assert_close(synced.running_mean, whole.running_mean)
    torch.testing.assert_close(synced.running_var, whole.running_var)
    assert size == 2
    return 0.0


def settings_of_the_optimizer():
    """Groups, 16 bits, divisions before the sum, sparse gradients: all train the replicas alike."""
    greatest = 0.0
    for settings in (
        {"groups": 1},
        {"num_groups": 2},
        {"compression": hvd.Compression.fp16},
        {"gradient_predivide_factor": 2.0},
        {"sparse_as_dense": True},
        {},
    ):
        torch.manual_seed(3)
        model = torch.nn.Sequential(torch.nn.Embedding(10, 3, sparse=True), torch.nn.Linear(3, 1))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters(), **settings)
        train_sparse(model, optimizer)
        greatest = max(greatest, drift(model))
    return greatest


def groups_that_the_program_holds():
    model, data = model_and_data()
    plain = torch.optim.SGD([{"params": [model.weight]}, {"params": [model.bias]}], lr=0.1, momentum=0.9)
    weight, bias = plain.param_groups
    optimizer = hvd.DistributedOptimizer(plain)
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    for step in range(1, 6):
        weight["lr"], bias["lr"] = 0.1 / step, 0.2 / step
        train(model, data, optimizer, steps=1)
    assert [group["lr"] for group in optimizer.param_groups] == [0.02, 0.04]
    return drift(model)


def loaded_after_a_scheduler():
    model, data = model_and_data()
    plain = torch.optim.SGD(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.StepLR(plain, 2)
    optimizer = hvd.DistributedOptimizer(plain)
    optimizer.load_state_dict(optimizer.state_dict())
    train(model, data, optimizer, scheduler=scheduler)
    return drift(model)


def types_of_a_broadcast_state():
    model, data = model_and_data()
    model, data = model.double(), data.double()
    plain = torch.optim.NAdam(model.parameters(), lr=0.1)
    if hvd.rank() == 0:
        train(model, data, plain)
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(plain, root_rank=0)
    products = [of["mu_product"] for of in plain.state.values()]
    assert {product.dtype for product in products} == {torch.float32}, products
    train(model, data, hvd.DistributedOptimizer(plain))
    return drift(model)


def train_sparse(model, optimizer):
    for step in range(3):
        optimizer.zero_grad()
        model(torch.tensor([step, 5 + hvd.rank()])).square().mean().backward()
        optimizer.step()


def frozen_sparse_embedding():
    torch.manual_seed(3)
    embedding = torch.nn.Embedding(7, 2, sparse=True)
    model = torch.nn.Sequential(embedding, torch.nn.Linear(2, 1))
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9))
    train_sparse(model, optimizer)
    embedding.weight.requires_grad_(False)
    before = embedding.weight.clone()
    train_sparse(model, optimizer)
    assert embedding.weight.grad is None
    return (embedding.weight - before).abs().max().item()


def frozen_by_shards():
    model, data = model_and_data()
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), shards=2)
    train(model, data, optimizer, steps=2)
    model.bias.requires_grad_(False)
    before = model.bias.clone()
    train(model, data, optimizer, steps=2)
    return (model.bias - before).abs().max().item()


def sparse_adam_of_unused_embeddings():
    """The second one is used by no rank in the first two steps, and in the next ones by one rank alone."""
    model, plain_model = (torch.nn.ModuleList([torch.nn.Embedding(6, 2, sparse=True) for _ in range(2)]) for _ in range(2))
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    plain_model.load_state_dict(model.state_dict())
    optimizer = hvd.DistributedOptimizer(torch.optim.SparseAdam(model.parameters(), lr=0.1))
    plain = torch.optim.SparseAdam(plain_model.parameters(), lr=0.1)

    def loss_of(model, step, rank):
        return model[int(step > 1 and rank == 1)](torch.tensor([step, 1 + rank])).pow(2).sum()

    for step in range(5):
        optimizer.zero_grad()
        loss_of(model, step, hvd.rank()).backward()
        optimizer.step()
        plain.zero_grad()
        (sum(loss_of(plain_model, step, rank) for rank in range(2)) / 2).backward()
        plain.step()
    return max((one - other).abs().max().item() for one, other in zip(model.parameters(), plain_model.parameters()))


hvd.init()
hvd.barrier()
case = globals()[sys.argv[1]]
difference = case()
print(json.dumps({"rank": hvd.rank(), "difference": difference}), flush=True)
hvd.shutdown()
