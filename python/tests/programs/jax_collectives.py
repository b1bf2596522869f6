"""JAX on several processes, which `jax.distributed.initialize()` finds without arguments. The first time, rank 1 dies by kill -9
after a collective."""

import json
import os
import signal
from pathlib import Path

import jax
import numpy

import elastic_node.integrations.jax  # noqa: F401: JAX asks it where the processes are.

jax.distributed.initialize()

from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding, PartitionSpec

ONCE = Path(os.environ["CONTROL"]) / "killed"
rank, size = jax.process_index(), jax.process_count()
gathered = multihost_utils.process_allgather(numpy.array([rank]))
if rank == 1 and not ONCE.exists():
    ONCE.touch()
    os.kill(os.getpid(), signal.SIGKILL)

mesh = Mesh(numpy.array(jax.devices()), ("ranks",))
rows = jax.make_array_from_process_local_data(NamedSharding(mesh, PartitionSpec("ranks")), numpy.array([rank + 1.0]))


def add(part):
    return jax.lax.psum(part, "ranks")


total = jax.jit(jax.shard_map(add, mesh=mesh, in_specs=PartitionSpec("ranks"), out_specs=PartitionSpec()))(rows)
said = {"rank": rank, "size": size, "gathered": gathered.ravel().tolist(), "sum": float(total[0])}
said["restarts"] = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
print(json.dumps(said), flush=True)
jax.distributed.shutdown()
