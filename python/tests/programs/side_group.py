"""Two threads of each rank reduce over all ranks at once, one in the default process group, one in another one. Or, with "above", the
default process group is made before `run`. Prints how many results were wrong, or the refusal."""

import json
import sys
import threading

import torch
import torch.distributed as dist

import elastic_node.torch as en

CALLS = 60


def wrong(results, add):
    """How many of the sums over all ranks are not what they are."""
    size = en.size()
    return sum(result != size * add + size * (size - 1) // 2 for result in results)


@en.elastic.run
def train(state):
    dist.init_process_group("elastic")
    side = dist.new_group()
    sums = {"side": [], "main": []}

    def reduce(name, group, add):
        for _ in range(CALLS):
            value = torch.tensor([float(en.rank() + add)])
            dist.all_reduce(value, group=group)
            sums[name].append(int(value))

    thread = threading.Thread(target=reduce, args=("side", side, 1000))
    thread.start()
    reduce("main", None, 0)
    thread.join()
    print(json.dumps({"main": wrong(sums["main"], 0), "side": wrong(sums["side"], 1000)}))


en.init()
if sys.argv[1] == "above":
    dist.init_process_group("elastic")
    try:
        train(en.elastic.ObjectState())
    except RuntimeError as error:
        print(json.dumps({"refusal": str(error)}))
else:
    train(en.elastic.ObjectState())
