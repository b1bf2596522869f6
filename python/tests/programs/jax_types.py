"""Collectives on arrays whose types NumPy has from JAX. Prints each result's type and content."""

import json

import jax.numpy
import numpy

import elastic_node as en

en.init()


def told(array):
    return [type(array).__module__.partition(".")[0], str(array.dtype), numpy.asarray(array).astype(float).tolist()]


for kind in (jax.numpy.bfloat16, jax.numpy.float8_e4m3fn, jax.numpy.int4):
    given = jax.numpy.full((2,), 1 + en.rank(), kind)
    results = {
        "sum": en.allreduce(given, op=en.Sum),
        "numpy": en.allreduce(numpy.asarray(given), op=en.Max),
        "scattered": en.reducescatter(given, op=en.Sum),
        "gathered": en.allgather(given),
        "root": en.broadcast(given, 1),
        "exchanged": en.alltoall(given),
    }
    try:
        en.allreduce_(numpy.array(given))
        refusal = None
    except TypeError as error:
        refusal = str(error)
    told_of = {name: told(result) for name, result in results.items()}
    print(json.dumps({"kind": given.dtype.name, "rank": en.rank(), "refusal": refusal, **told_of}), flush=True)
