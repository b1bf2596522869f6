"""Children that multiprocessing starts. Each prints what it may do.

argv: the start method, of children that a worker starts; `launcher` for a process that starts the worker, and is none itself.
"""

import json
import multiprocessing
import sys

import numpy

import elastic_node as en

HOW = sys.argv[1]

if HOW != "launcher":
    en.init()
    PLACE = en.rank(), en.size()


def child(rank):
    said = {"child_of": rank, "place": PLACE}
    en.init(process_sets=[[0]])
    for name, call in {"allreduce": lambda: float(en.allreduce(numpy.ones(1))[0]), "rank": en.rank}.items():
        try:
            said[name] = call()
        except en.CollectiveError as error:
            said[name] = str(error)
    print(json.dumps({**said, "is_initialized": en.is_initialized()}), flush=True)


def worker():
    en.init()
    print(json.dumps({"rank": en.rank(), "sum": float(en.allreduce(numpy.ones(1), op=en.Sum)[0])}), flush=True)


def joined(context, target, *arguments):
    process = context.Process(target=target, args=arguments)
    process.start()
    process.join()
    assert process.exitcode == 0, process.exitcode


@en.elastic.run
def train(state):
    if state.step == 0:
        joined(multiprocessing.get_context(HOW), child, en.rank())
        state.step = 1
        state.commit()


if __name__ == "__main__":
    if HOW == "launcher":
        joined(multiprocessing.get_context("spawn"), worker)
    else:
        train(en.elastic.ObjectState(step=0))
        print(json.dumps({"rank": en.rank(), "generation": en.generation()}), flush=True)
