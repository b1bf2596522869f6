"""An object of a state that refers to one of its parts in two places does so on each rank, and equal content has equal bytes."""

import collections
import copy
import enum

import numpy
import pytest
import torch

from elastic_node import _codec, _sharing
from elastic_node._sampler import ElasticSampler


class Part:
    """A part of a state that knows another one."""

    def __init__(self, **parts):
        self.__dict__.update(parts)


class Colour(enum.Enum):
    RED = 1


def back(value):
    header, buffers = _codec.encode(value)
    return _codec.decode(header, [bytearray(buffer) for buffer in buffers])


def test_an_array_that_two_parts_refer_to_is_one_after_a_copy():
    grid = numpy.zeros(4)
    world = back({"grid": grid, "agents": [Part(world=grid), Part(world=grid)]})
    world["grid"][0] = 7
    assert [agent.world[0] for agent in world["agents"]] == [7, 7]


def test_tied_weights_of_a_module_in_another_object_stay_tied():
    module = torch.nn.Sequential(torch.nn.Embedding(4, 2), torch.nn.Linear(2, 4, bias=False))
    module[1].weight = module[0].weight
    teacher = back(Part(module=module)).module
    assert teacher[1].weight is teacher[0].weight


def test_shared_subtrees_take_time_and_bytes_once():
    tree = []
    for _ in range(60):
        tree = [tree, tree]
    header, _ = _codec.encode(tree)
    assert len(header) < 2_000
    copied = back(tree)
    assert copied[0] is copied[1]


def test_an_object_that_refers_to_itself_comes_back_so():
    parent = Part(children=[])
    parent.children.append(Part(parent=parent))
    copied = back(parent)
    assert copied.children[0].parent is copied


@pytest.mark.parametrize("shares", [False, True])
def test_equal_content_has_equal_bytes_whatever_of_it_is_one_object(shares):
    def content(text):
        """`text` makes a text, which another rank may have as one object or as several."""
        row = [1.5, {text("lr"): text("grid")}]
        part = Part(lr=text("lr"), grid=text("value"))
        return {text("grid"): row, text("lr"): row if shares else copy.deepcopy(row), text("part"): part}

    constant = content(lambda value: value)
    made = content(lambda value: "".join(list(value)))
    assert _codec.encode(constant) == _codec.encode(made)
    assert _codec.encode(back(constant)) == _codec.encode(constant)


def test_constants_in_two_places_are_no_sharing():
    pair, kind = (1, "a"), numpy.dtype("float32")
    values = [[pair, pair], [kind, kind], [Colour.RED, Colour.RED], [int, int], ["x" * 9] * 2, [torch.float32] * 2]
    assert [value for value in values if _sharing.may_share(value)] == []
    assert not _sharing.may_share([collections.OrderedDict(a=1), [1.0] * 1000, numpy.ones(3), torch.ones(3)])


def test_what_only_the_garbage_collector_sees_changes_no_bytes():
    hooked = torch.nn.Linear(2, 2)
    before = _codec.encode({"weights": list(hooked.state_dict().values())})[0]
    shared = [1]
    hooked.weight.register_hook(lambda gradient: shared and gradient)
    assert _codec.encode({"weights": list(hooked.state_dict().values())})[0] == before


def test_an_array_of_objects_is_looked_into():
    part = [1]
    array = numpy.empty(2, dtype=object)
    array[0] = array[1] = part
    copied = back({"array": array})["array"]
    assert copied[0] is copied[1]


def test_a_sampler_within_another_object_is_refused():
    sampler = ElasticSampler(list(range(8)))
    batches = torch.utils.data.BatchSampler(sampler, 2, False)
    with pytest.raises(TypeError, match="a sampler .ElasticSampler. within another object"):
        _codec.encode({"batches": batches})
