"""JAX over several hosts, each process with one CPU device, by its own coordinator. Arguments: a folder for results and checkpoints,
a folder with control files. A rank whose control file `kill.RANK.RESTARTS` is there kills itself on the way; the next start goes on
from the last checkpoint."""

import json
import os
import sys

import jax
import numpy

import elastic_node.integrations.jax  # noqa: F401: JAX asks it where the processes are.

results, control = sys.argv[1:3]
jax.distributed.initialize()

from jax.experimental import multihost_utils  # noqa: E402
from jax.sharding import Mesh, NamedSharding, PartitionSpec  # noqa: E402

STEPS, EVERY, KILL_AT = 20, 5, 12
rank, size = jax.process_index(), jax.process_count()
restarts = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
mesh = Mesh(numpy.array(jax.devices()), ("ranks",))
by_rank, everywhere = NamedSharding(mesh, PartitionSpec("ranks")), NamedSharding(mesh, PartitionSpec())

random = numpy.random.default_rng(7)
inputs = random.normal(size=(64, 8)).astype("float32")
weights = {"inner": random.normal(size=(8, 16)).astype("float32"), "outer": random.normal(size=(16, 1)).astype("float32")}
rows = slice(rank * 64 // size, (rank + 1) * 64 // size)
x = jax.make_array_from_process_local_data(by_rank, inputs[rows])
y = jax.make_array_from_process_local_data(by_rank, inputs[rows].sum(axis=1, keepdims=True))

checkpoint, step, losses = os.path.join(results, "checkpoint.npz"), 0, []
if os.path.exists(checkpoint):
    with numpy.load(checkpoint) as saved:
        step, losses = int(saved["step"]), saved["losses"].tolist()
        weights = {name: saved[name] for name in weights}
began_at = step
weights = jax.device_put(weights, everywhere)


def loss_of(weights, x, y):
    return jax.numpy.square(jax.numpy.tanh(x @ weights["inner"]) @ weights["outer"] - y).mean()


@jax.jit
def train(weights, x, y):
    loss, gradients = jax.value_and_grad(loss_of)(weights, x, y)
    return jax.tree.map(lambda weight, gradient: weight - 0.05 * gradient, weights, gradients), loss


while step < STEPS:
    weights, loss = train(weights, x, y)
    losses.append(float(loss))
    if step == KILL_AT and os.path.exists(os.path.join(control, f"kill.{rank}.{restarts}")):
        os.kill(os.getpid(), 9)
    step += 1
    if step % EVERY == 0:
        if rank == 0:
            arrays = {name: numpy.asarray(weight.addressable_data(0)) for name, weight in weights.items()}
            numpy.savez(checkpoint + ".draft.npz", step=step, losses=losses, **arrays)
            os.rename(checkpoint + ".draft.npz", checkpoint)
        multihost_utils.sync_global_devices(f"checkpoint {step}")

result = {"rank": rank, "restarts": restarts, "losses": losses, "began_at": began_at}
result["coordinator"] = os.environ["ELASTIC_MEETING_ADDRESS"].rpartition(":")[0]
path = os.path.join(results, f"result.{rank}")
with open(path + ".draft", "w") as file:
    json.dump(result, file)
os.rename(path + ".draft", path)
jax.distributed.shutdown()
