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
from job_events import LOG

if sys.argv[1].endswith("_loader"):
    # Not in the step that hangs: torch may take as long as a hang.
    from torch.utils.data import DataLoader

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


def full_stdout():
    """Prints until its pipe is full, since the reader stands still. The agent itself never lets a pipe stay full."""
    reader = subprocess.Popen(["sleep", "1000"], stdin=subprocess.PIPE)
    os.dup2(reader.stdin.fileno(), sys.stdout.fileno())
    while True:
        print("loss 0.1" * 1000)


class Numbers:
    """A data set whose loader's process says which one it is, and then stands still."""

    def __len__(self):
        return 8

    def __getitem__(self, index):
        (ONCE.parent / "loader").write_text(str(os.getpid()))
        signal.pause()


def batch():
    return iter(DataLoader(Numbers(), num_workers=1))


def loader_pid():
    note = ONCE.parent / "loader"
    while not (note.exists() and note.read_text()):
        pass
    return int(note.read_text())


def killed_loader():
    """torch's own loader raises when its process is gone."""
    batches = batch()
    os.kill(loader_pid(), signal.SIGKILL)
    next(batches)


def stopped_loader():
    """It does not where its process is stopped."""
    batches = batch()
    os.kill(loader_pid(), signal.SIGSTOP)
    next(batches)


def dead_child():
    """As a data loader whose worker was killed, and that waits for its next batch."""
    loader = subprocess.Popen(["sleep", "1000"])
    loader.kill()
    reader, _writer = os.pipe()
    os.read(reader, 1)


def frozen_disk():
    """A write to a disk that does not answer until the driver has named the worker that waits for it."""
    disk = os.environ["DISK"]
    with open(f"{disk}/file", "wb", buffering=0) as file:
        subprocess.run(["fsfreeze", "-f", disk], check=True)
        thaws = f"until grep -q worker_stalled '{LOG}'; do sleep 0.1; done; fsfreeze -u '{disk}'"
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
