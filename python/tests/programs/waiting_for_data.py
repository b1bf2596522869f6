"""Trains while it waits for data most of the time: `section` by a section of that name, `loader` by torch's DataLoader, which
knows nothing of this package."""

import sys
import time

import numpy

import elastic_node as en

WAIT_S = 0.04
STEPS = 100


class Slow:
    """A data set whose samples take their time."""

    def __len__(self):
        return STEPS

    def __getitem__(self, index):
        time.sleep(WAIT_S)
        return float(index)


def batches_of_a_section():
    data = Slow()
    for index in range(STEPS):
        with en.section("data"):
            batch = data[index]
        yield batch


def batches():
    if sys.argv[1] == "section":
        return batches_of_a_section()
    import elastic_node.torch  # noqa: F401: what a script that trains with torch has imported
    from torch.utils.data import DataLoader

    return iter(DataLoader(Slow()))


en.init()
state = en.elastic.ObjectState(step=0)


@en.elastic.run
def train(state):
    for _ in batches():
        en.allreduce(numpy.ones(4), op=en.Sum)
        time.sleep(0.01)
        state.step += 1
        state.commit()


train(state)
