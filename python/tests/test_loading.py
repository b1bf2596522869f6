"""Parts of an optimiser or a scheduler that a program holds stay the objects that they are, with the content that is loaded; and a
distributed optimiser stays distributed."""

import pytest

torch = pytest.importorskip("torch")

import elastic_node.torch as en  # noqa: E402
from test_torch import initialized, model_and_optimizer, step  # noqa: E402, F401


def roundtrip(state):
    """Goes back to the state as it is: as after a loss, and as a rank that takes it over."""
    header, buffers = state._capture()
    state._apply(header, [bytearray(buffer) for buffer in buffers])


def two_groups(lr=0.1):
    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.Linear(3, 1))
    return model, torch.optim.Adam([{"params": part.parameters()} for part in model], lr=lr)


@pytest.mark.parametrize("how", ["restored", "taken over", "taken over before the first step"])
def test_groups_and_states_of_an_optimizer_stay_the_objects_that_a_program_holds(how):
    model, optimizer = two_groups(lr=torch.tensor(0.1))
    if how != "taken over before the first step":
        step(model, optimizer)
    groups, (body, head), states = optimizer.param_groups, optimizer.param_groups, optimizer.state
    lr, parameters = body["lr"], body["params"]
    moments = [dict(of) for of in states.values()]
    state = en.elastic.TorchState(model, optimizer)
    source_model, source = two_groups(lr=torch.tensor(0.5))
    for _ in range(2):
        step(source_model, source)
    state.commit()
    if how == "restored":
        step(model, optimizer)
        body["lr"].fill_(0.7)
        body["betas"] = (0.5, 0.6)
        state.restore()
        expected = 0.1
    else:
        header, buffers = en.elastic.TorchState(source_model, source)._capture()
        state._apply(header, [bytearray(buffer) for buffer in buffers])
        expected = 0.5
    assert optimizer.param_groups is groups and groups[0] is body and groups[1] is head and optimizer.state is states
    assert body["params"] is parameters and body["lr"] is lr and lr.item() == pytest.approx(expected)
    assert body["betas"] == (0.9, 0.999)
    assert list(body)[-1] == "params", "in the order of a state_dict"
    for of, before in zip(states.values(), moments):
        assert all(of[name] is before[name] for name in before)
        assert of["step"].item() == (1 if how == "restored" else 2)
    if how != "restored":
        for own, theirs in zip(states.values(), source.state.values()):
            assert all(torch.equal(own[name], theirs[name]) for name in theirs)


def test_a_learning_rate_that_groups_share_takes_the_value_of_each():
    model, optimizer = two_groups(lr=torch.tensor(0.1))
    assert optimizer.param_groups[0]["lr"] is optimizer.param_groups[1]["lr"]
    other_model, other = two_groups()
    for group, lr in zip(other.param_groups, (0.2, 0.3)):
        group["lr"] = torch.tensor(lr)
    header, buffers = en.elastic.TorchState(other_model, other)._capture()
    en.elastic.TorchState(model, optimizer)._apply(header, [bytearray(buffer) for buffer in buffers])
    assert [group["lr"].item() for group in optimizer.param_groups] == pytest.approx([0.2, 0.3])


def test_lists_of_schedulers_and_a_gradient_scaler_stay():
    _, optimizer = two_groups()
    parts = [torch.optim.lr_scheduler.ConstantLR(optimizer), torch.optim.lr_scheduler.MultiStepLR(optimizer, [2])]
    scheduler = torch.optim.lr_scheduler.SequentialLR(optimizer, parts, [3])
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    scale = scaler.scale(torch.ones(())), scaler._scale
    state = en.elastic.TorchState(optimizer=optimizer, scheduler=scheduler, scaler=scaler)
    state.save()
    lists = [part.base_lrs for part in (scheduler._schedulers[0], *parts)]
    milestones, last = parts[1].milestones, scheduler._last_lr
    parts[0].base_lrs[0] = 7.0
    milestones[5] = 1
    scaler.update(2.0)
    state.restore()
    assert [part.base_lrs for part in (scheduler._schedulers[0], *parts)] == lists
    assert all(part.base_lrs is own for part, own in zip((scheduler._schedulers[0], *parts), lists))
    assert lists[0] == [0.1, 0.1] and parts[1].milestones is milestones and milestones == {2: 1}
    assert scheduler._last_lr is last
    assert scaler._scale is scale[1] and scaler.get_scale() == 4.0


class Subclassed(torch.optim.SGD):
    """Has another optimiser's groups, as classes on the net do, and shares them again after a load."""

    def __init__(self, params):
        super().__init__(params, lr=0.1)
        self.other = torch.optim.SGD(self.param_groups)
        self.param_groups = self.other.param_groups

    def load_state_dict(self, state_dict):
        super().load_state_dict(state_dict)
        self.other.param_groups = self.param_groups


class Around(torch.optim.Optimizer):
    """An optimiser around another one, as timm's Lookahead: without torch's constructor."""

    def __init__(self, base):
        self.base, self.param_groups, self.defaults, self.state = base, base.param_groups, base.defaults, {}

    def state_dict(self):
        return self.base.state_dict()

    def load_state_dict(self, state_dict):
        self.base.load_state_dict(state_dict)
        self.param_groups = self.base.param_groups

    def step(self, closure=None):
        self.base.step()


class Shown(torch.optim.Optimizer):
    """An optimiser that shows the groups and the state of another one, as accelerate's."""

    def __init__(self, base):
        self.base = base

    param_groups = property(lambda self: self.base.param_groups)
    state = property(lambda self: self.base.state)
    state_dict = Around.state_dict

    def load_state_dict(self, state_dict):
        self.base.load_state_dict(state_dict)


@pytest.mark.parametrize("kind", [Subclassed, Around, Shown])
def test_optimizers_that_share_groups_with_another_one_go_on_sharing_them(kind):
    model, plain = model_and_optimizer()
    step(model, plain)
    optimizer = kind(model.parameters()) if kind is Subclassed else kind(plain)
    groups, (group,) = optimizer.param_groups, optimizer.param_groups
    inner = optimizer.other if kind is Subclassed else plain
    roundtrip(en.elastic.TorchState(model, optimizer))
    for part in (optimizer, inner):
        assert part.param_groups is groups and groups[0] is group


@pytest.mark.parametrize("scheduled", ["before", "after", "not"])
def test_a_distributed_optimizer_stays_distributed_when_a_state_is_loaded(scheduled):
    model, plain = model_and_optimizer()
    if scheduled == "before":
        torch.optim.lr_scheduler.StepLR(plain, 5)
    optimizer = en.DistributedOptimizer(plain, named_parameters=model.named_parameters())
    if scheduled == "after":
        torch.optim.lr_scheduler.StepLR(optimizer, 5)
    calls = []
    optimizer.register_step_pre_hook(lambda *_: calls.append("before"))
    optimizer.register_step_post_hook(lambda *_: calls.append("after"))
    state = en.elastic.TorchState(model, optimizer)
    state.save()
    for load in (lambda: None, lambda: optimizer.load_state_dict(optimizer.state_dict()), state.restore, lambda: roundtrip(state)):
        load()
        synchronize, synchronized = type(optimizer).synchronize, []
        optimizer.synchronize = lambda: synchronized.append(synchronize(optimizer))
        with torch.profiler.profile() as profile:
            step(model, optimizer)
        del optimizer.synchronize
        assert len(synchronized) == 1, "gradients are averaged"
        assert calls == ["before", "after"], calls
        assert sum(event.name.startswith("Optimizer.step#") for event in profile.events()) == 1
        calls.clear()


class Sam(torch.optim.Optimizer):
    """Sharpness-aware minimisation, as published: the momentum is that of an optimiser within."""

    def __init__(self, params, base=torch.optim.SGD, **kwargs):
        super().__init__(params, {"rho": 0.05, **kwargs})
        self.base_optimizer = base(self.param_groups, **kwargs)
        self.param_groups = self.base_optimizer.param_groups
        self.defaults.update(self.base_optimizer.defaults)

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for parameter in group["params"]:
                self.state[parameter]["old_p"] = parameter.clone()
        self.base_optimizer.step()

    def load_state_dict(self, state_dict):
        super().load_state_dict(state_dict)
        self.base_optimizer.param_groups = self.param_groups


def trained_by_sam(steps, **more):
    model, _ = model_and_optimizer()
    optimizer = Sam(model.parameters(), lr=0.1, momentum=0.9)
    for _ in range(steps):
        step(model, optimizer)
    return en.elastic.TorchState(model, optimizer, **{name: of(optimizer) for name, of in more.items()})


@pytest.mark.parametrize("more", [{}, {"base": lambda optimizer: optimizer.base_optimizer}])
def test_an_optimizer_within_another_one_is_part_of_its_content(more):
    source, target = trained_by_sam(3, **more), trained_by_sam(1, **more)
    header, buffers = source._capture()
    target._apply(header, [bytearray(buffer) for buffer in buffers])
    source.save()
    due = [dict(of) for of in source.optimizer.base_optimizer.state.values()]
    due = [of["momentum_buffer"].clone() for of in due]
    step(source.model, source.optimizer)
    source.restore()
    for state in (source, target):
        outer, inner = state.optimizer, state.optimizer.base_optimizer
        assert outer.param_groups is inner.param_groups
        assert all(torch.equal(of["momentum_buffer"], momentum) for of, momentum in zip(inner.state.values(), due))
        assert len(outer.state) == len(inner.state) == len(due)
    names = {name: "momentum_buffer" in repr(content) for name, content in source.capture().items()}
    assert [name for name in names if names[name]] == (["base"] if more else ["optimizer"]), "it is saved once"


def test_a_state_of_an_optimizer_within_another_one_loads_from_earlier_content():
    source, target = trained_by_sam(3), trained_by_sam(1)
    content = source.capture()
    del content["optimizer"]["inner_optimizers"]
    target.apply(content)
    assert torch.equal(target.model[0].weight, source.model[0].weight)


class Lookahead(Around):
    """A wrapper whose `state_dict` leaves out its slow weights."""

    def __init__(self, base):
        super().__init__(base)
        self.state = {parameter: {"slow": parameter.detach().clone()} for group in base.param_groups for parameter in group["params"]}


def test_a_wrapper_that_leaves_out_a_part_of_its_state_is_refused():
    model, plain = model_and_optimizer()
    refused = "'optimizer' in the state is an optimiser .Lookahead. around another one .Adam., and its state_dict.. leaves out .* .*slow"
    state = en.elastic.TorchState(model, optimizer=Lookahead(plain))
    with pytest.raises(TypeError, match=refused):
        state._check_encodable()
    with pytest.raises(TypeError, match=refused):
        en.elastic.TorchState(model, optimizer=Lookahead(plain)).commit()
    for complete in (Around(plain), Shown(plain)):
        step(model, plain)
        en.elastic.TorchState(model, optimizer=complete)._check_encodable()
