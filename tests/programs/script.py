"""A training script that knows nothing of the library, and needs no torch: it meets its peers through the store,
and then waits to be told how to end. Arguments: a folder of control files, a folder for its log."""

import json
import os
import signal
import socket
import struct
import sys
import time

control, log_folder = sys.argv[1:3]
rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
restarts = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
log_file = open(os.path.join(log_folder, f"{os.getpid()}.jsonl"), "w", buffering=1)


def log(event, **fields):
    print(json.dumps({"event": event, "rank": rank, "pid": os.getpid(), **fields}), file=log_file)


class Store:
    """As much of torch's TCPStore protocol as it takes to meet."""

    def __init__(self):
        address = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
        self.socket = socket.create_connection(address)
        self.socket.sendall(struct.pack("<BI", 0, 0x3C85F7CE) + struct.pack("<BI", 13, 7))
        assert self.receive(4) == struct.pack("<I", 7)

    def receive(self, length):
        received = b""
        while len(received) < length:
            part = self.socket.recv(length - len(received))
            if not part:
                raise ConnectionError("the store closed the connection")
            received += part
        return received

    @staticmethod
    def blob(text):
        return struct.pack("<Q", len(text)) + text.encode()

    def set(self, key, value):
        self.socket.sendall(b"\1" + self.blob(key) + self.blob(value))

    def get(self, key):
        self.socket.sendall(b"\6" + struct.pack("<Q", 1) + self.blob(key))
        assert self.receive(1) == b"\0"
        self.socket.sendall(b"\3" + self.blob(key))
        return self.receive(struct.unpack("<Q", self.receive(8))[0]).decode()


def on_sigterm(*_):
    if has("ignore-sigterm"):
        return log("ignored")
    log("sigterm")
    time.sleep(0.1)
    sys.exit(0)


def has(name):
    return os.path.exists(os.path.join(control, name))


signal.signal(signal.SIGTERM, on_sigterm)
log("start", restarts=restarts, environment=dict(os.environ), arguments=sys.argv[3:])
print(f"out of rank {rank}", flush=True)
print(f"err of rank {rank}", file=sys.stderr, flush=True)
store = Store()
store.set(f"peer/{rank}", str(os.getpid()))
log("met", peers=[int(store.get(f"peer/{peer}")) for peer in range(world_size)])
while not has("finish"):
    if has(f"raise.{rank}"):
        error = {"message": "ValueError: out of luck", "extraInfo": {
            "py_callstack": "Traceback (most recent call last):\nValueError: out of luck",
            "timestamp": str(int(time.time()))}}
        with open(os.environ["TORCHELASTIC_ERROR_FILE"], "w") as file:
            json.dump({"message": error}, file)
        sys.exit(1)
    if has(f"kill.{rank}.{restarts}"):
        os.kill(os.getpid(), signal.SIGKILL)
    if has(f"wait.{rank}"):
        try:
            store.get("never")
        except ConnectionError:
            log("wait-failed")
            time.sleep(60)
    time.sleep(0.01)
log("done")
