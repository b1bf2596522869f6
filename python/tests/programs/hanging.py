"""Trains, and has the worker that finds itself to be rank 1 first hang in the middle of a step, in the way that is named."""

import ctypes
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import numpy

import elastic_node as en

ONCE = Path(os.environ["CONTROL"]) / "hung"
STEPS, HANGS_AT = 40, 10


def spin():
    while True:
        pass


def lock():
    held = threading.Lock()
    held.acquire()
    held.acquire()


def full_pipe():
    _reader, writer = os.pipe()
    while True:
        os.write(writer, bytes(1 << 16))


def dead_child():
    """As a data loader whose worker was killed, and that waits for its next batch."""
    loader = subprocess.Popen(["sleep", "1000"])
    loader.kill()
    reader, _writer = os.pipe()
    os.read(reader, 1)


def frozen_disk():
    """A write to a disk that does not answer until the driver has named who waits for it."""
    disk, events = os.environ["DISK"], Path(os.environ["CONTROL"]) / "state" / "events.jsonl"
    with open(f"{disk}/file", "wb", buffering=0) as file:
        subprocess.run(["fsfreeze", "-f", disk], check=True)
        thaws = f"until grep -q worker_stalled '{events}'; do sleep 0.1; done; fsfreeze -u '{disk}'"
        with subprocess.Popen(["sh", "-c", thaws]):
            file.write(b"it waits")


def native_code():
    """Native code that keeps the GIL."""
    while True:
        ctypes.PyDLL(None).pause()


def section():
    with en.section("evaluation", within=1):
        lock()


def stopped():
    os.kill(os.getpid(), signal.SIGSTOP)


en.init()
state = en.elastic.ObjectState(step=0, total=0.0)


@en.elastic.run
def train(state):
    while state.step < STEPS:
        if state.step == HANGS_AT and en.rank() == 1 and not ONCE.exists():
            ONCE.touch()
            globals()[sys.argv[1]]()
        state.total += float(en.allreduce(numpy.ones(4), op=en.Sum)[0]) / en.size()
        state.step += 1
        state.commit()


train(state)
assert state.total == STEPS, state.total
