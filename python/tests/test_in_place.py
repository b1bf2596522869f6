"""A commit's tensors go back into the memory of modules and optimisers that have them already, and the commit's own
tensors are given to nobody."""

import pytest

torch = pytest.importorskip("torch")

import elastic_node.torch as en  # noqa: E402
from elastic_node import _codec  # noqa: E402
from test_torch import content, initialized, model_and_optimizer, step  # noqa: E402, F401


class Holder:
    """An object that pickle takes, and that nobody looks into."""

    def __init__(self, tensor):
        self.tensor = tensor


def within_a_job(function, state):
    """Calls `function(state)` where commits are those of the library, also in a world of one."""
    en.elastic.run(function)(state)


def addresses(model, optimizer):
    tensors = [*model.state_dict().values(), *(it["exp_avg"] for it in optimizer.state.values())]
    return [tensor.data_ptr() for tensor in tensors]


def test_tensors_stay_where_they_are_and_have_the_commits_content_each_time():
    model, optimizer = model_and_optimizer()
    step(model, optimizer)
    state = en.elastic.TorchState(model, optimizer, step=0)

    def train(state):
        state.commit()
        before, at = content(model), addresses(model, optimizer)
        moments = [it["exp_avg"].clone() for it in optimizer.state.values()]
        for _ in range(3):
            step(model, optimizer)
            state.restore()
            assert addresses(model, optimizer) == at
            assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
            now = [it["exp_avg"] for it in optimizer.state.values()]
            assert all(torch.equal(moment, value) for moment, value in zip(moments, now))

    within_a_job(train, state)


def test_what_has_no_place_yet_gets_memory_of_its_own():
    model, optimizer = model_and_optimizer()
    step(model, optimizer)
    state = en.elastic.TorchState(model, optimizer, average=torch.ones(3))

    def train(state):
        state.commit()
        before, average = content(model), state.average
        optimizer.state.clear()
        with torch.no_grad():
            # Another type, and memory with gaps: the content is converted, as `load_state_dict` does it.
            model[0].weight.data = model[0].weight.data.double()
            model[2].weight.data = torch.zeros(1, 6)[:, ::2]
        state.restore()
        assert model[0].weight.dtype == torch.float64
        assert torch.equal(model[0].weight.float(), before["0.weight"])
        assert torch.equal(model[2].weight, before["2.weight"])
        assert len(optimizer.state) == 6
        assert state.average is not average and state.average.tolist() == [1.0] * 3
        with torch.no_grad():
            model[2].weight.add_(1)
        state.average.zero_()
        state.restore()
        assert torch.equal(model[2].weight, before["2.weight"]), "the commit is as it was"
        assert state.average.tolist() == [1.0] * 3

    within_a_job(train, state)


def test_hooks_see_what_they_load():
    model, _ = model_and_optimizer()
    state = en.elastic.TorchState(model)
    seen = []
    model[0].register_load_state_dict_pre_hook(
        lambda module, state_dict, prefix, *_: seen.append(state_dict[f"{prefix}weight"].clone())
    )

    def train(state):
        state.commit()
        before = content(model)
        with torch.no_grad():
            model[0].weight.zero_()
        state.restore()
        assert torch.equal(seen[-1], before["0.weight"])
        assert torch.equal(model[0].weight, before["0.weight"])

    within_a_job(train, state)


def test_modules_that_other_code_takes_part_in_are_loaded_from_new_memory():
    model, _ = model_and_optimizer()
    asked = []
    model[0]._register_state_dict_hook(lambda *_: asked.append(None))
    state = en.elastic.TorchState(model)

    def train(state):
        state.commit()
        before, count = content(model), len(asked)
        with torch.no_grad():
            model[0].weight.zero_()
        state.restore()
        assert len(asked) == count, "such code may talk to other ranks"
        assert torch.equal(model[0].weight, before["0.weight"])

    within_a_job(train, state)


def test_weights_with_two_names_and_tensors_that_others_have_too_are_restored():
    first, second = torch.nn.Linear(3, 3, bias=False), torch.nn.Linear(3, 3, bias=False)
    second.weight = first.weight
    model = torch.nn.Sequential(first, second)
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    moment = next(iter(optimizer.state.values()))["exp_avg"]
    state = en.elastic.TorchState(model, optimizer, holder=Holder(moment), moment=moment)

    def train(state):
        state.commit()
        before, of_moment = first.weight.detach().clone(), moment.clone()
        for _ in range(2):
            with torch.no_grad():
                first.weight.zero_()
            state.moment.zero_()
            state.holder.tensor.zero_()
            next(iter(optimizer.state.values()))["exp_avg"].zero_()
            state.restore()
            assert second.weight is first.weight and torch.equal(first.weight, before)
            assert torch.equal(state.holder.tensor, of_moment) and torch.equal(state.moment, of_moment)
            assert torch.equal(next(iter(optimizer.state.values()))["exp_avg"], of_moment)

    within_a_job(train, state)


def test_a_header_says_which_buffers_are_tensors_of_modules_and_others_read_it_without():
    model, optimizer = model_and_optimizer()
    state = en.elastic.TorchState(model, optimizer, average=torch.ones(3))
    header, buffers = state._capture()
    # `average` comes first, by name; the modules' tensors follow.
    marked = _codec.marked_in_place(header)
    assert marked == set(range(1, len(buffers))), (marked, len(buffers))
    decoded = _codec.decode(header, [bytearray(buffer) for buffer in buffers])
    assert torch.equal(decoded["model"]["0.weight"], model[0].weight)
    assert _codec.marked_in_place(_codec.encode(1)[0]) == frozenset()


def test_tensors_of_the_states_own_keep_their_class_and_flag():
    quantized = torch.quantize_per_tensor(torch.ones(3), 0.5, 0, torch.qint8)
    state = en.elastic.TorchState(
        weight=torch.nn.Parameter(torch.ones(2)),
        frozen=torch.nn.Parameter(torch.ones(2), requires_grad=False),
        leaf=torch.zeros(2, requires_grad=True),
        quantized=quantized,
    )

    def train(state):
        state.commit()
        state.weight = state.frozen = state.leaf = state.quantized = None
        state.restore()
        assert type(state.weight) is torch.nn.Parameter and state.weight.requires_grad
        assert type(state.frozen) is torch.nn.Parameter and not state.frozen.requires_grad
        assert type(state.leaf) is torch.Tensor and state.leaf.requires_grad
        assert torch.equal(state.quantized.int_repr(), quantized.int_repr())
        (state.weight * state.leaf).sum().backward()
        assert state.weight.grad.tolist() == [0.0, 0.0] and state.leaf.grad.tolist() == [1.0, 1.0]

    within_a_job(train, state)
