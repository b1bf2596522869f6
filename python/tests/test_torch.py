"""`elastic_node.torch`: the state, the optimiser, the sampler, in a world of one."""

import pytest

torch = pytest.importorskip("torch")

import elastic_node.torch as en  # noqa: E402


@pytest.fixture(autouse=True)
def initialized():
    en.init()
    yield
    en.shutdown()


def model_and_optimizer():
    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.BatchNorm1d(3), torch.nn.Linear(3, 1))
    return model, torch.optim.Adam(model.parameters(), lr=0.1)


def step(model, optimizer):
    optimizer.zero_grad()
    model(torch.ones(2, 4) * torch.tensor([[1.0], [2.0]])).sum().backward()
    optimizer.step()


def content(model):
    return {name: value.clone() for name, value in model.state_dict().items()}


def test_a_state_moves_as_one_unit():
    """Horovod's quirk 4: weights ran ahead of counters, schedulers, scalers and random numbers there."""
    model, optimizer = model_and_optimizer()
    random = torch.Generator().manual_seed(3)
    state = en.elastic.TorchState(
        model,
        optimizer,
        scheduler=torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5),
        random=random,
        sampler=en.ElasticDistributedSampler(range(10)),
        average=torch.zeros(2),
        epoch=0,
    )
    step(model, optimizer)
    state.commit()
    before, drawn = content(model), torch.rand(3, generator=random)
    step(model, optimizer)
    state.scheduler.step()
    state.sampler.record_batch(0, 4)
    state.average += 1
    state.epoch = 7
    assert optimizer.param_groups[0]["lr"] == 0.05
    state.restore()
    assert state.model is model and state.optimizer is optimizer and state.random is random
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert optimizer.param_groups[0]["lr"] == 0.1
    assert next(iter(optimizer.state.values()))["step"].item() == 1
    assert torch.equal(torch.rand(3, generator=random), drawn)
    assert (state.epoch, state.sampler.processed_num, state.average.tolist()) == (0, 0, [0.0, 0.0])


def test_a_newcomers_optimizer_takes_over_what_it_has_not_made_yet():
    model, optimizer = model_and_optimizer()
    step(model, optimizer)
    source = en.elastic.TorchState(model, optimizer, step=5)
    other_model, other_optimizer = model_and_optimizer()
    target = en.elastic.TorchState(other_model, other_optimizer, step=0)
    header, buffers = source._capture()
    target._apply(header, [bytearray(buffer) for buffer in buffers])
    step(model, optimizer)
    step(other_model, other_optimizer)
    assert target.step == 5
    for name, value in model.state_dict().items():
        assert torch.equal(value, other_model.state_dict()[name])


@pytest.mark.parametrize("kind", [torch.bfloat16, torch.float64])
def test_an_optimizers_tensors_keep_their_types(kind):
    """torch casts them to the type of the parameters."""

    def trained():
        torch.manual_seed(1)
        model = torch.nn.Linear(4, 2).to(kind)
        optimizer = torch.optim.NAdam(model.parameters(), lr=0.1)
        model(torch.ones(1, 4, dtype=kind)).sum().backward()
        optimizer.step()
        for of in optimizer.state.values():
            of["master"] = torch.full((2,), 1.0 + 2.0**-20)
        return model, optimizer

    model, optimizer = trained()
    state = en.elastic.TorchState(model, optimizer)
    state.commit()
    before = [dict(of) for of in optimizer.state.values()]
    state.restore()
    target = en.elastic.TorchState(*trained())
    header, buffers = state._capture()
    target._apply(header, [bytearray(buffer) for buffer in buffers])
    for held in (optimizer, target.optimizer):
        for of, kept in zip(held.state.values(), before):
            assert {name: value.dtype for name, value in of.items()} == {name: value.dtype for name, value in kept.items()}
            assert all(torch.equal(of[name], kept[name]) for name in kept)


def test_modules_train_on_in_the_mode_of_the_last_commit():
    model, optimizer = model_and_optimizer()
    model[1].eval()
    state = en.elastic.TorchState(model, optimizer)
    state.commit()
    model.eval()
    state.restore()
    assert [part.training for part in model.modules()] == [True, True, False, True], "a frozen normalisation stays frozen"


def test_a_newcomers_modules_take_over_the_modes_of_the_others():
    def frozen():
        model, optimizer = model_and_optimizer()
        return en.elastic.TorchState(model, optimizer, teachers=[torch.nn.Dropout(), torch.nn.Dropout()])

    source, target, of_earlier_release = frozen(), frozen(), frozen()
    source.model[1].eval()
    source.teachers[1].eval()
    header, buffers = source._capture()
    target._apply(header, [bytearray(buffer) for buffer in buffers])
    assert [part.training for part in target.model.modules()] == [True, True, False, True]
    assert [teacher.training for teacher in target.teachers] == [True, False]
    assert target._public() == source._public() and not hasattr(target, "_module_modes")
    content = source.capture()
    del content["_module_modes"]
    of_earlier_release.model[2].eval()
    of_earlier_release.apply(content)
    assert [part.training for part in of_earlier_release.model.modules()] == [True, True, True, False], "as they were"


def test_normalisations_go_on_with_the_momentum_of_the_last_commit():
    model, optimizer = model_and_optimizer()
    model[1].momentum = 0.3
    cumulative = torch.nn.BatchNorm1d(2, momentum=None)
    state = en.elastic.TorchState(model, optimizer, others=[en.SyncBatchNorm(2), cumulative])
    state.commit()

    def broken_off():
        yield torch.ones(2, 4)
        raise RuntimeError("a rank died")

    with pytest.raises(RuntimeError, match="a rank died"):
        torch.optim.swa_utils.update_bn(broken_off(), model)
    assert model[1].momentum is None, "torch leaves it so"
    cumulative.momentum = 0.5
    state.restore()
    assert [model[1].momentum, state.others[0].momentum, cumulative.momentum] == [0.3, 0.1, None]
    content = state.capture()
    del content["_module_momenta"]
    model[1].momentum = 0.2
    state.apply(content)
    assert model[1].momentum == 0.2, "a content of an earlier release has none, and leaves it as it is"


def test_frozen_parameters_are_those_of_the_last_commit():
    def fresh():
        model, optimizer = model_and_optimizer()
        model[0].requires_grad_(False)
        counts = torch.nn.ParameterList([torch.nn.Parameter(torch.ones(2, dtype=torch.int32), requires_grad=False)])
        return en.elastic.TorchState(model, optimizer, counts=counts)

    def frozen(state):
        return [name for name, parameter in state.model.named_parameters() if not parameter.requires_grad]

    state, newcomer = fresh(), fresh()
    at_first = frozen(state)
    assert at_first and all(name.startswith("0.") for name in at_first)
    state.commit()
    state.model[0].requires_grad_(True)
    header, buffers = state._capture()
    newcomer._apply(header, [bytearray(buffer) for buffer in buffers])
    assert frozen(newcomer) == []
    state.restore()
    assert frozen(state) == at_first, "the step that unfroze them was undone"
    content = newcomer.capture()
    del content["_module_frozen"]
    state.apply(content)
    assert frozen(state) == at_first, "a content of an earlier release leaves them as they are"


def test_a_tensor_of_which_each_rank_has_a_shard_is_refused(tmp_path):
    dist = torch.distributed
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/meet", rank=0, world_size=1)
    try:
        mesh = dist.device_mesh.init_device_mesh("cpu", (1,))
        shard = dist.tensor.distribute_tensor(torch.ones(4), mesh, [dist.tensor.Shard(0)])
        with pytest.raises(TypeError, match="'weights' in the state cannot be saved: a DTensor holds this rank's shard only"):
            en.elastic.TorchState(weights=shard).commit()
    finally:
        dist.destroy_process_group()


@pytest.mark.parametrize("kind", [torch.bfloat16, torch.float16, torch.int8, torch.bool, torch.complex64])
def test_tensors_of_every_type_are_kept(kind):
    values = torch.tensor([[0, 1], [1, 1]]).to(kind).T
    state = en.elastic.TorchState(values=values, empty=torch.zeros((0, 3), dtype=kind), scalar=values[0, 0])
    state.save()
    state.values = state.empty = state.scalar = None
    state.restore()
    assert torch.equal(state.values, values) and state.empty.shape == (0, 3) and state.scalar.shape == ()


def test_collectives_take_tensors_in_place():
    tensor = torch.ones(4, requires_grad=True)
    en.allreduce_(tensor, op=en.Sum)
    assert tensor.requires_grad and tensor.tolist() == [1.0] * 4
    assert isinstance(en.allgather(torch.ones(2, 2)), torch.Tensor)
    with pytest.raises(BufferError, match="contiguous"):
        en.allreduce_(torch.ones(4, 4)[:, ::2])
    half = torch.ones(3, dtype=torch.bfloat16)
    assert en.allreduce(half).dtype == torch.bfloat16


def test_a_distributed_optimizer_steps_as_the_plain_one():
    (plain_model, plain), (model, optimizer) = model_and_optimizer(), model_and_optimizer()
    distributed = en.DistributedOptimizer(optimizer)
    assert isinstance(distributed, torch.optim.Adam)
    scheduler = torch.optim.lr_scheduler.StepLR(distributed, 1)
    for _ in range(3):
        step(plain_model, plain)
        step(model, distributed)
    scheduler.step()
    for name, value in plain_model.state_dict().items():
        assert torch.equal(value, model.state_dict()[name])
    assert distributed.step(lambda: 0.5) == 0.5, "a closure's loss is the average of all ranks'"


def test_gradients_of_several_passes_add_up():
    model, optimizer = model_and_optimizer()
    distributed = en.DistributedOptimizer(optimizer, backward_passes_per_step=2)
    model(torch.ones(2, 4)).sum().backward()
    assert distributed._reducer.launched == 0
    model(torch.ones(2, 4)).sum().backward()
    assert distributed._reducer.launched == len(distributed._reducer.buckets)
    distributed.step()


def test_what_a_step_has_left_is_forgotten_when_the_state_goes_back():
    model = torch.nn.Linear(4, 1)
    plain = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer = en.DistributedOptimizer(plain, backward_passes_per_step=2)
    scaler = torch.amp.GradScaler("cpu")
    state = en.elastic.TorchState(nested=[{"model": model}], optimizer=plain, scaler=scaler)
    state.save()
    scaler.scale(model(torch.ones(1, 4)).sum()).backward()
    scaler.unscale_(plain)
    state.restore()
    assert all(parameter.grad is None for parameter in model.parameters())
    for _ in range(2):
        scaler.scale(model(torch.ones(1, 4)).sum()).backward()
    optimizer.synchronize()
    scaler.unscale_(plain)
    assert all(torch.equal(parameter.grad, torch.full_like(parameter, 2.0)) for parameter in model.parameters())


def test_gradients_stay_on_a_rank_that_takes_nothing_over():
    model, optimizer = model_and_optimizer()
    state = en.elastic.TorchState(model=model, optimizer=optimizer)
    model(torch.ones(2, 4)).sum().backward()
    state.commit()
    state.sync()
    assert all(parameter.grad is not None for parameter in model.parameters())
    state.apply(state.capture())
    assert all(parameter.grad is None for parameter in model.parameters())


def test_the_sampler_goes_on_in_an_epoch_that_has_begun():
    sampler = en.ElasticDistributedSampler(range(10))
    loader = torch.utils.data.DataLoader(list(range(10)), batch_size=2, sampler=sampler)
    sampler.set_epoch(1)
    seen = []
    for number, batch in enumerate(loader):
        sampler.record_batch(number, len(batch))
        seen += batch.tolist()
        if number == 1:
            break
    sampler.set_epoch(1)
    seen += [index for batch in loader for index in batch.tolist()]
    assert sorted(seen) == list(range(10))
    with pytest.raises(ValueError, match="drop_last"):
        en.ElasticDistributedSampler(range(10), drop_last=True)


def test_labels_of_optimizers_that_look_alike_are_the_same_on_survivors_and_newcomers(monkeypatch):
    from elastic_node._process_sets import global_process_set
    from elastic_node.torch import _labels

    def made():
        return _labels.Label([torch.zeros(3, 5, 7)], None, global_process_set)

    def begin():
        _labels._taken.clear()

    first, second = made(), made()
    assert str(second) == f"{first}.1"
    monkeypatch.setattr(_labels._context, "in_generation", lambda: True)
    begin()
    within = [made(), made()]
    assert [str(it) for it in within] == [f"{first}.2", f"{first}.3"]
    begin()
    # One that is kept goes on with its label, and a new one takes the next: a newcomer makes both.
    within[0].take()
    assert str(made()) == f"{first}.3"
    begin()
    anew = made()
    assert str(anew) == str(within[0]) and anew.is_taken and not within[0].is_taken
    with pytest.raises(RuntimeError, match="parameters that look alike"):
        within[0].take()
    for label in (first, second, anew):
        label.take()
