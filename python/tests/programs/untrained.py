"""A program that joins the job and ends without having trained: all ranks (`look`), with one that fails first (`fail`), or
one rank of those that train, in its first life (`missing`)."""

import json
import os
import sys
import time
from pathlib import Path

import numpy

import elastic_node as en

CASE, CONTROL = sys.argv[1], Path(os.environ["CONTROL"])
ENDED = CONTROL / "ended"

en.init()
rank, size = en.rank(), en.size()
print(json.dumps({"rank": rank, "size": size}), flush=True)
if CASE == "look":
    sys.exit()
if rank == 1 and not ENDED.exists():
    ENDED.touch()
    sys.exit(3 if CASE == "fail" else 0)
until = time.monotonic() + 30
while not ENDED.exists() and time.monotonic() < until:
    time.sleep(0.01)
if CASE == "missing":
    total = en.allreduce(numpy.ones(1), op=en.Sum)
    print(json.dumps({"total": total.tolist()}), flush=True)
