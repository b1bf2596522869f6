"""An experiment: how soon the death of a process is known that does not hold our lock, such as a script by restart.

    python3 bench/experiments/early_death.py --resident 0.01,1,2 --kills 9

A process that has touched so much memory is killed with SIGKILL. Milliseconds from the kill until each of these knows, as
medians, each in a process of its own: a pidfd; a robust lock that a preloaded library took; PTRACE_EVENT_EXIT; the exit events of taskstats
(the last needs CAP_NET_ADMIN). `-` is a way that this system does not have. docs/design/processes.md says what follows.
"""

import argparse
import ctypes
import json
import mmap
import os
import select
import signal
import socket
import statistics
import struct
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

LIBC = ctypes.CDLL(None, use_errno=True)

#: Touches so many bytes, says so, and sleeps.
VICTIM = """
import mmap, signal, sys
memory = mmap.mmap(-1, int(sys.argv[1]))
for at in range(0, len(memory), 4096):
    memory[at] = 1
print("ready", flush=True)
signal.pause()
"""

#: Most time to wait for the report of a death, in seconds.
PATIENCE_S = 60

FUTEX_WAIT, FUTEX_OWNER_DIED, SYS_FUTEX = 0, 0x40000000, 202
PTRACE_CONT, PTRACE_SEIZE, PTRACE_O_TRACEEXIT, PTRACE_EVENT_EXIT = 7, 0x4206, 0x40, 6
NETLINK_GENERIC, GENL_ID_CTRL, CTRL_CMD_GETFAMILY = 16, 16, 3
CTRL_ATTR_FAMILY_ID, CTRL_ATTR_FAMILY_NAME = 1, 2
TASKSTATS_CMD_GET, TASKSTATS_CMD_ATTR_REGISTER_CPUMASK = 1, 3
TASKSTATS_TYPE_AGGR_PID, TASKSTATS_TYPE_PID = 4, 1


class Unavailable(Exception):
    """This system does not have a way, or does not allow it."""


def by_pidfd(pid, seen, ready, _page):
    watched = os.pidfd_open(pid)
    ready.set()
    select.select([watched], [], [], PATIENCE_S)
    seen()
    os.close(watched)


def by_lock(_pid, seen, ready, page):
    word = ctypes.c_uint.from_buffer(page, 8)
    deadline = time.monotonic() + PATIENCE_S
    while word.value == 0 and time.monotonic() < deadline:
        time.sleep(0.001)
    ready.set()
    limit = (ctypes.c_long * 2)(1, 0)
    while not word.value & FUTEX_OWNER_DIED and time.monotonic() < deadline:
        LIBC.syscall(SYS_FUTEX, ctypes.byref(word), FUTEX_WAIT, word.value, limit, None, 0)
    seen()


def by_ptrace(pid, seen, ready, _page):
    seize = (PTRACE_SEIZE, pid, None, ctypes.c_void_p(PTRACE_O_TRACEEXIT))
    if LIBC.ptrace(*seize) != 0:
        raise Unavailable(os.strerror(ctypes.get_errno()))
    ready.set()
    _, status = os.waitpid(pid, 0)
    if status >> 16 != PTRACE_EVENT_EXIT:
        raise Unavailable(f"no event before the end: {status:#x}")
    seen()
    # Its end waits for this.
    LIBC.ptrace(PTRACE_CONT, pid, None, None)
    os.waitpid(pid, 0)


def by_taskstats(pid, seen, ready, _page):
    link = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, NETLINK_GENERIC)
    link.bind((0, 0))
    link.settimeout(PATIENCE_S)
    link.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 22)
    answer = _asked(link, GENL_ID_CTRL, CTRL_CMD_GETFAMILY, CTRL_ATTR_FAMILY_NAME, b"TASKSTATS\0")
    family = struct.unpack("H", _attributes(answer[20:])[CTRL_ATTR_FAMILY_ID][:2])[0]
    cpus = f"0-{(os.cpu_count() or 1) - 1}\0".encode()
    _asked(link, family, TASKSTATS_CMD_GET, TASKSTATS_CMD_ATTR_REGISTER_CPUMASK, cpus)
    ready.set()
    while True:
        event = _attributes(link.recv(1 << 16)[20:])
        of = _attributes(event.get(TASKSTATS_TYPE_AGGR_PID, b""))
        if of.get(TASKSTATS_TYPE_PID, b"")[:4] == struct.pack("I", pid):
            break
    seen()
    link.close()


def _asked(link, family, command, attribute, value):
    body = struct.pack("BBH", command, 1, 0) + struct.pack("HH", 4 + len(value), attribute)
    body += value + bytes(-len(value) % 4)
    # A request (1) that is acknowledged (4).
    link.send(struct.pack("IHHII", 16 + len(body), family, 5, 0, 0) + body)
    answer = link.recv(1 << 16)
    if answer[4:6] == struct.pack("H", 2):
        error = -struct.unpack("i", answer[16:20])[0]
        if error:
            raise Unavailable(os.strerror(error))
    return answer


def _attributes(data):
    found = {}
    while len(data) >= 4:
        length, kind = struct.unpack("HH", data[:4])
        if length < 4:
            break
        found[kind & 0x3FFF] = data[4:length]
        data = data[(length + 3) & ~3 :]
    return found


WAYS = {"pidfd": by_pidfd, "preloaded lock": by_lock, "ptrace": by_ptrace, "taskstats": by_taskstats}


def measure(way, resident, library):
    """Milliseconds from a kill until one way knows."""
    shared = os.memfd_create("early-lock", 0)
    os.truncate(shared, 4096)
    page = mmap.mmap(shared, 4096)
    environment = dict(os.environ)
    if way == "preloaded lock":
        environment.update(LD_PRELOAD=str(library), EARLY_LOCK=str(shared))
    command = [sys.executable, "-c", VICTIM, str(resident)]
    victim = subprocess.Popen(command, stdout=subprocess.PIPE, pass_fds=[shared], env=environment)
    victim.stdout.readline()
    ready, times, refused = threading.Event(), [], []

    def watch():
        try:
            WAYS[way](victim.pid, lambda: times.append(time.monotonic()), ready, page)
        except (Unavailable, OSError) as error:
            refused.append(error)
            ready.set()

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    ready.wait(PATIENCE_S)
    killed = time.monotonic()
    victim.kill()
    watcher.join(PATIENCE_S)
    if way != "ptrace":
        victim.wait()
    os.close(shared)
    if refused or not times:
        raise Unavailable(str(refused or "not seen in time"))
    return (times[0] - killed) * 1e3


def main():
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--resident", default="0.01,1", help="GB that the victim has touched")
    arguments.add_argument("--kills", type=int, default=9)
    options = arguments.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        library = Path(folder) / "early_lock.so"
        source = Path(__file__).with_name("early_lock.c")
        subprocess.run(["cc", "-O2", "-shared", "-fPIC", "-pthread", "-o", library, source], check=True)
        for size in options.resident.split(","):
            line = {"resident_gb": float(size)}
            for way in WAYS:
                try:
                    kills = [measure(way, max(int(float(size) * 1e9), 4096), library) for _ in range(options.kills)]
                    line[way] = round(statistics.median(kills), 3)
                except Unavailable as error:
                    line[way] = f"- ({error})"
            print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
