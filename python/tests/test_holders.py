"""Modules, optimisers and the like in a state stay the objects that they are, wherever in it they are; all else goes back to the
commit as it was."""

import collections

import pytest

torch = pytest.importorskip("torch")

import elastic_node.torch as en  # noqa: E402
from elastic_node import _codec  # noqa: E402

Pair = collections.namedtuple("Pair", "model optimizer")


def parts(seed):
    torch.manual_seed(seed)
    model = torch.nn.Linear(2, 2)
    return model, torch.optim.SGD(model.parameters(), lr=0.1)


class Trainer:
    """A class of a program's own."""

    def __init__(self):
        self.model, self.optimizer = parts(1)


def test_optimizers_in_containers_step_the_state_s_own_modules_after_a_kill(job):
    done = job("two_optimizers.py", workers=2)
    assert done.code == 0, done.output
    ends = done.said()
    assert len(ends) == 2 and ends[0]["weights"] == ends[1]["weights"], done.output
    assert all(of["are_the_same_objects"] and of["unmoved"] == 0 for of in ends), ends
    assert any(of["calls"] > 1 for of in ends), "a survivor trained on in its process"


def test_what_is_in_containers_is_given_its_content_in_place():
    (model, optimizer), random = parts(1), torch.Generator().manual_seed(4)
    nested = {"of": [Pair(model, optimizer), {"random": random, "number": 3}], "words": ["a"]}
    state = en.elastic.TorchState(nested=nested, plain=[1, 2])
    state.save()
    due, drawn = model.weight.detach().clone(), torch.rand(2, generator=random)
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    nested["of"][1]["number"] = 4
    nested["words"].append("b")
    state.plain.append(3)
    state.restore()
    assert state.nested is nested and nested["of"][0] == Pair(model, optimizer)
    assert torch.equal(model.weight, due) and torch.equal(torch.rand(2, generator=random), drawn)
    assert (nested["of"][1]["number"], nested["words"], state.plain) == (3, ["a"], [1, 2])
    assert optimizer.param_groups[0]["params"][0] is model.weight


def test_containers_stay_the_objects_that_they_are_where_the_program_has_imported_jax():
    jax = pytest.importorskip("jax")
    model, _ = parts(1)
    nested = {"model": model, "array": jax.numpy.arange(3)}
    state = en.elastic.TorchState(nested=nested)
    state.save()
    nested["array"] = nested["array"] + 1
    state.restore()
    assert state.nested is nested and nested["model"] is model
    assert isinstance(nested["array"], jax.Array) and nested["array"].tolist() == [0, 1, 2]


def test_another_rank_takes_it_over_by_place_and_arrays_keep_their_names():
    (model, optimizer), (other, other_optimizer) = parts(1), parts(2)
    content = en.elastic.TorchState(pairs=[[model, optimizer]]).capture()
    names = [name and name[0] for name in _codec.begin_encoding(content, is_named=True).names]
    assert names == ["pairs.0.0.weight", "pairs.0.0.bias"]
    taken = en.elastic.TorchState(pairs=[[other, other_optimizer]])
    taken.apply(_codec.decode(*_codec.encode(content)))
    assert taken.pairs[0] == [other, other_optimizer] and torch.equal(other.weight, model.weight)


def test_what_was_added_after_the_commit_is_removed_with_its_rollback():
    state = en.elastic.TorchState(step=0, models=[])
    state.save()
    state.best, state._own = 3, 4
    state.models.append(parts(1)[0])
    state.restore()
    assert not hasattr(state, "best") and state._own == 4 and state.models == []


@pytest.mark.parametrize("here", [None, [], [3], {"0": 1}, ["one", "more"]])
def test_a_module_that_one_rank_alone_has_is_an_error(here):
    content = en.elastic.TorchState(models=[parts(1)[0]]).capture()
    with pytest.raises(ValueError, match="'models.*' in the state is a module, an optimiser or the like"):
        en.elastic.TorchState(models=here).apply(content)
    if here == [3]:
        with pytest.raises(ValueError, match="here: one; in the commit: none"):
            en.elastic.TorchState(models=[parts(1)[0]]).apply({"models": here})


def test_an_optimizer_within_another_object_is_refused():
    state = en.elastic.TorchState(trainer=Trainer())
    with pytest.raises(TypeError, match=r"'trainer' in the state cannot be saved: an optimiser \(SGD\) within another object"):
        state.save()


@pytest.mark.parametrize("kind", [en.elastic.ObjectState, en.elastic.TorchState])
def test_a_module_goes_back_without_gradients_and_in_the_mode_of_the_commit(kind):
    model, _ = parts(1)
    state = kind(models=[model], step=0)
    state.save()
    model.eval()
    model(torch.ones(1, 2)).sum().backward()
    state.restore()
    assert model.training and [parameter.grad for parameter in model.parameters()] == [None, None]


@pytest.mark.parametrize("part", [lambda: parts(1)[1], lambda: torch.amp.GradScaler("cpu"), lambda: {"of": [parts(1)[1]]}])
def test_what_only_a_torch_state_takes_back_to_a_commit_is_refused_in_an_object_state(part):
    state = en.elastic.ObjectState(part=part())
    for check in (state._check_encodable, state._check_parts):
        with pytest.raises(TypeError, match="'part' in the state is or has .* give it to elastic_node.torch.elastic.TorchState"):
            check()
    en.elastic.TorchState(part=part())._check_encodable()


@pytest.mark.parametrize("kind", [en.elastic.ObjectState, en.elastic.TorchState])
def test_a_lazy_module_is_refused_by_name_until_it_has_seen_a_batch(kind):
    model = torch.nn.Sequential(torch.nn.Linear(2, 4), torch.nn.LazyBatchNorm1d(), torch.nn.LazyLinear(1))
    state = kind(models=[model])
    with pytest.raises(ValueError, match=r"'models\.1\.weight' in the state has no shape yet.*LazyBatchNorm1d.*Call the module with a batch"):
        state._check_encodable()
    model(torch.ones(3, 2))
    state._check_encodable()
