"""Arrays in a state that share memory are refused: each rank that takes the state over would get copies of them."""

import dataclasses

import numpy
import pytest

import elastic_node as en
from elastic_node import _overlaps

torch = pytest.importorskip("torch")

import elastic_node.torch  # noqa: E402


class Part:
    def __init__(self, **parts):
        self.__dict__.update(parts)


@dataclasses.dataclass
class Layers:
    flat: object
    first: object


def read_only(array):
    array.setflags(write=False)
    return array


def flat_numpy():
    return numpy.zeros(12)


def flat_torch():
    return torch.zeros(12)


@pytest.mark.parametrize("flat", [flat_numpy, flat_torch])
@pytest.mark.parametrize(
    "attributes, names",
    [
        (lambda flat: {"flat": flat, "layer": flat[:6]}, ("'flat'", "'layer'")),
        (lambda flat: {"flat": flat, "layer": flat.reshape(3, 4)}, ("'flat'", "'layer'")),
        (lambda flat: {"one": flat[:7], "other": flat[6:]}, ("'one'", "'other'")),
        (lambda flat: {"all": {"flat": flat, "layers": [flat[:6], flat[6:]]}}, ("'all.flat'", "'all.layers.0'")),
        (lambda flat: {"model": Layers(flat, flat[3:])}, ("'model.first'", "'model.flat'")),
        (lambda flat: {"flat": flat, "model": Part(layer=flat[6:])}, ("'flat'", "'model'")),
        (lambda flat: {"model": Part(flat=flat, layer=flat[6:])}, ("'model'", "another array of 'model'")),
    ],
)
def test_an_array_and_a_view_of_it_are_refused_by_their_names(flat, attributes, names):
    state = en.elastic.ObjectState(step=0, **attributes(flat()))
    one, other = names
    for check in (state._check_encodable, state._check_parts):
        with pytest.raises(ValueError, match=f"({one} and {other}|{other} and {one}) in the state share memory"):
            check()


def test_a_numpy_array_of_a_tensor_s_memory_is_refused():
    tensor = torch.zeros(4)
    with pytest.raises(ValueError, match="'array' and 'tensor' in the state share memory"):
        en.elastic.ObjectState(tensor=tensor, array=tensor.numpy())._check_parts()


def test_a_tensor_of_the_memory_of_a_module_that_stays_is_refused_before_training():
    module, flat = torch.nn.Linear(2, 2, bias=False), torch.zeros(4)
    module.weight.data = flat.view(2, 2)
    with pytest.raises(ValueError, match="'flat' and 'model.weight' in the state share memory"):
        en.torch.elastic.TorchState(model=module, flat=flat)._check_encodable()


@pytest.mark.parametrize("flat", [flat_numpy, flat_torch])
@pytest.mark.parametrize(
    "attributes",
    [
        lambda flat: {"one": flat[:6], "other": flat[6:]},
        lambda flat: {"columns": [flat.reshape(3, 4)[:, column] for column in range(4)]},
        lambda flat: {"even": flat[::2], "odd": flat[1::2]},
        lambda flat: {"flat": flat, "again": [flat, flat]},
        lambda flat: {"empty": flat[:0], "flat": flat},
    ],
)
def test_parts_of_one_array_that_do_not_overlap_and_one_object_in_two_places_are_taken(flat, attributes):
    state = en.elastic.ObjectState(**attributes(flat()))
    state._check_encodable()
    state._check_parts()


def test_what_cannot_be_written_to_is_taken():
    table = read_only(numpy.zeros(4))
    en.elastic.ObjectState(table=table, row=table[:2])._check_encodable()


def test_tied_weights_in_a_state_dict_and_modules_that_have_a_part_in_common_are_taken():
    model = torch.nn.Sequential(torch.nn.Embedding(4, 2), torch.nn.Linear(2, 4, bias=False))
    model[1].weight = model[0].weight
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.tensor([1])).sum().backward()
    optimizer.step()
    best = {name: value.clone() for name, value in model.state_dict().items()}
    tied = torch.nn.Sequential(torch.nn.Embedding(4, 2), torch.nn.Linear(2, 4, bias=False))
    tied[1].weight = tied[0].weight
    state = en.torch.elastic.TorchState(model, optimizer, parts=[model[0]], best=best, saved=tied.state_dict())
    state._check_encodable()
    state._check_parts()


def test_columns_without_end_are_compared_up_to_a_limit():
    count = int((2 * _overlaps.PAIRS_MAX) ** 0.5) + 100
    columns = numpy.zeros((2, count))
    parts = [_overlaps.Part("x", f"x.{column}", columns[:, column], False) for column in range(count)]
    assert _overlaps.first_shared(parts) is None


def test_views_are_refused_as_training_begins_and_at_the_first_commit():
    en.init()

    @en.elastic.run
    def train(state):
        state.flat = numpy.zeros(4)
        state.layer = state.flat[:2]
        with pytest.raises(ValueError, match="'flat' and 'layer' in the state share memory"):
            state.commit()
        state.layer = state.layer.copy()
        state.commit()
        return "trained"

    flat = numpy.zeros(4)
    try:
        with pytest.raises(ValueError, match="Keep one of them in the state"):
            train(en.elastic.ObjectState(flat=flat, layer=flat[:2]))
        assert train(en.elastic.ObjectState()) == "trained"
    finally:
        en.shutdown()
