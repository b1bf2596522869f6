"""Every collective against what it must give, on each rank of a job."""

import json
import threading

import numpy

import elastic_node as en

en.init()
first = en.allreduce(1, op=en.Sum)  # Begins the first generation.
rank, size = en.rank(), en.size()
assert first == size
all_ranks = list(range(size))

for kind in (numpy.float32, numpy.float64, numpy.float16, numpy.int32, numpy.int64):
    values = (numpy.arange(1000) % 7 + rank).astype(kind)
    columns = numpy.stack([(numpy.arange(1000) % 7 + other).astype(kind) for other in all_ranks])
    for op, due in ((en.Sum, columns.sum(0)), (en.Min, columns.min(0)), (en.Max, columns.max(0))):
        numpy.testing.assert_array_equal(en.allreduce(values, op=op), due.astype(kind))

numpy.testing.assert_allclose(en.allreduce(numpy.full(3, float(rank))), numpy.mean(all_ranks))
large = numpy.full(1_000_000, float(rank))
handle = en.allreduce_async_(large, op=en.Sum)
small = en.allreduce_async_(numpy.ones(2), op=en.Sum)
assert en.synchronize(small)[0] == size
assert en.synchronize(handle) is large and large[-1] == sum(all_ranks)

pair = en.grouped_allreduce([numpy.ones(3), numpy.ones((2, 2), numpy.float32)], op=en.Sum)
assert pair[0].tolist() == [size] * 3 and pair[1].dtype == numpy.float32 and pair[1][1, 1] == size

gathered = en.allgather(numpy.full((rank + 1, 2), rank))
assert gathered[:, 0].tolist() == [other for other in all_ranks for _ in range(other + 1)]
strings = en.allgather(numpy.array([[rank, rank]], numpy.int16))
assert strings[:, 1].tolist() == all_ranks, "types that are not reduced are moved"

received, counts = en.alltoall(numpy.arange(size * (size + 1) // 2), splits=[n + 1 for n in all_ranks])
assert counts == [rank + 1] * size and len(received) == size * (rank + 1)
assert en.alltoall(numpy.arange(size) * 10 + rank).tolist() == [rank * 10 + n for n in all_ranks]
uneven = en.reducescatter(numpy.arange(2.0 * size + 1), op=en.Sum)
assert len(uneven) == (3 if rank == 0 else 2) and uneven[0] == size * (0 if rank == 0 else 2 * rank + 1)
assert en.grouped_allgather([numpy.array([rank]), numpy.array([[rank, 1.5]])])[1].shape == (size, 2)
part = en.reducescatter(numpy.arange(2.0 * size), op=en.Sum)
assert part.tolist() == [2 * rank * size, (2 * rank + 1) * size]

assert en.broadcast(numpy.full(2, rank), root_rank=size - 1).tolist() == [size - 1] * 2
assert en.broadcast_object({"from": rank}, root_rank=1) == {"from": 1}
assert en.allgather_object("x" * rank) == ["x" * other for other in all_ranks]

# Launched operations are done in the order of launch, in whatever order they are waited for.
number = float(rank)
launched = [
    (en.allreduce_async(number, op=en.Sum), sum(all_ranks)),
    (en.broadcast_async(number, root_rank=size - 1), size - 1),
    (en.allgather_async(number), all_ranks),
    (en.reducescatter_async(numpy.full(size, number), op=en.Max), [size - 1]),
    (en.alltoall_async(numpy.full(size, number)), all_ranks),
    (en.alltoall_async(numpy.full(size, number), splits=[1] * size), (all_ranks, [1] * size)),
    (en.grouped_allreduce_async([number, numpy.ones(1)], op=en.Sum), [sum(all_ranks), [size]]),
    (en.grouped_allreduce_async_([numpy.full(1, number), numpy.ones(1)], op=en.Sum), [[sum(all_ranks)], [size]]),
]
for handle, due in reversed(launched):
    result = en.synchronize(handle)
    parts = zip(result, due) if isinstance(due, tuple) or isinstance(result, list) else [(result, due)]
    for part, due_part in parts:
        numpy.testing.assert_array_equal(part, due_part)

# Threads that call at one time: names tell their calls apart, whichever comes first on a rank.
met = [[], []]


def sums_of(thread):
    for _ in range(50):
        met[thread].append(en.allreduce(float(thread), op=en.Sum, name=f"thread {thread}"))


threads = [threading.Thread(target=sums_of, args=(thread,)) for thread in range(2)]
for thread in threads if rank % 2 else reversed(threads):
    thread.start()
for thread in threads:
    thread.join()
assert met == [[0.0] * 50, [float(size)] * 50], met

ends = en.add_process_set([size - 1, 0])
if ends.included():
    assert ends.rank() == (0 if rank == 0 else 1), "in the order of the world"
    assert en.allreduce(float(rank), op=en.Sum, process_set=ends) == size - 1
    assert en.broadcast_object(rank, root_rank=0, process_set=ends) == 0
en.remove_process_set(ends)
# The first ranks have more data than the others, who take part with nothing.
for _ in range(size - rank):
    counted = en.allreduce(1.0, op=en.Sum)
assert counted == rank + 1
assert en.join() == 0
en.shutdown()
en.init()
en.barrier()
print(json.dumps({"rank": rank, "size": size}), flush=True)
en.shutdown()
