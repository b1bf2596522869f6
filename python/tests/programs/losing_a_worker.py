"""Runs another training program, whose path and arguments are given, and loses the worker that is rank 1 first, by kill -9
amid a step. Each rank that ends tells its commits and a digest of its state, which the program has in `state`."""

import hashlib
import json
import os
import runpy
import signal
import sys
from pathlib import Path

import elastic_node as en
from elastic_node import _codec, _context

ONCE = Path(os.environ["CONTROL"]) / "killed"
COMMITS_BEFORE = 20

commit = en.elastic.State.commit
process = {"commits": 0}


def commit_or_die(state):
    if process["commits"] == COMMITS_BEFORE and en.rank() == 1 and not ONCE.exists():
        ONCE.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    process["commits"] += 1
    commit(state)


en.elastic.State.commit = commit_or_die
sys.argv = sys.argv[1:]
sys.path.insert(0, str(Path(sys.argv[0]).parent))
state = runpy.run_path(sys.argv[0], run_name="__main__")["state"]

header, buffers = _codec.encode(state.capture())
content = hashlib.sha256(b"".join([header, *buffers])).hexdigest()
print(json.dumps({"commits": _context.session().step, "content": content}), flush=True)
