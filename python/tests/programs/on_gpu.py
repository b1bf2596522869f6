"""Collectives on arrays that are on the GPU: they are not copied, and NCCL's stream waits for their owner's."""

import json
from typing import List, Optional

import device
import elastic_node as en
from elastic_node._process_sets import global_process_set, group_of


class Told:
    """The reports of the collectives' thread about an operation."""

    def __init__(self) -> None:
        self.words: List[object] = []

    def queued(self) -> None:
        self.words.append("queued")

    def __call__(self, error: Optional[BaseException]) -> None:
        self.words.append(error)


def on_gpu(*numbers: float) -> device.OnGpu:
    return device.OnGpu(numbers, en.local_rank())


@en.elastic.run
def train(state: en.elastic.ObjectState) -> None:
    rank, size = en.rank(), en.size()
    group = group_of(global_process_set)

    mean = on_gpu(rank, 2 * rank)
    assert en.allreduce_(mean) is mean
    assert mean.numbers() == [(size - 1) / 2, size - 1], mean.numbers()
    (stream,) = mean.streams
    assert stream, "the stream that NCCL's work is queued on"

    one, other = on_gpu(1.0), on_gpu(rank, rank, rank)
    en.grouped_allreduce_([one, other], op=en.Sum)
    assert (one.numbers(), other.numbers()) == ([size], [sum(range(size))] * 3)

    handle = en.allreduce_async_(one, op=en.Max)
    assert en.synchronize(handle) is one and one.numbers() == [size]

    from_root = on_gpu(rank)
    en.broadcast_(from_root, root_rank=1)
    assert from_root.numbers() == [1]

    everything = on_gpu(*[0.0] * size)
    group.all_gather(on_gpu(rank), everything).wait()
    assert everything.numbers() == list(range(size))

    part = on_gpu(0.0)
    group.reduce_scatter(on_gpu(*range(size)), part, "sum").wait()
    assert part.numbers() == [rank * size]

    received = on_gpu(*[0.0] * size)
    group.all_to_all(on_gpu(*[10 * rank + to for to in range(size)]), received).wait()
    assert received.numbers() == [10 * source + rank for source in range(size)]

    told = Told()
    group.all_reduce([one], "max", told).wait()
    assert told.words == ["queued", None], told.words

    # In place, as FSDP2 does: an input that is this rank's part of the output, and the other way round.
    whole = on_gpu(*[10.0 * rank] * size)
    group.all_gather(whole.part(rank, 1), whole).wait()
    assert whole.numbers() == [10.0 * source for source in range(size)]
    parts = on_gpu(*range(size))
    group.reduce_scatter(parts, parts.part(rank, 1), "sum").wait()
    assert parts.part(rank, 1).numbers() == [rank * size]
    try:
        group.all_gather(whole.part((rank + 1) % size, 1), whole).wait()
    except ValueError as error:
        assert "neither is this rank's part" in str(error)
    else:
        raise AssertionError("another rank's part was taken")

    for wrong in (lambda: en.allreduce_(device.OnGpu([1.0], en.local_rank() + 1)), lambda: group.all_gather(part, [0.0])):
        try:
            wrong()
        except (BufferError, TypeError) as error:
            print(json.dumps({"refused": str(error)}), flush=True)
        else:
            raise AssertionError("it was taken")

    # Data in main memory goes through NCCL, too.
    total = en.allreduce(float(rank), op=en.Sum)
    print(json.dumps({"rank": rank, "total": total}), flush=True)


en.init()
train(en.elastic.ObjectState())
