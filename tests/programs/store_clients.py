"""A worker whose threads each store a long value and read two back, all through the same agent. Needs no torch.
Arguments: a folder of control files, a folder for its log, the number of clients, the bytes of a value. If there is a
control file `hold`, it tells the port and waits for `begin`."""

import json
import os
import socket
import struct
import sys
import threading
import time

control, log_folder, clients, length = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
address = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
log_file = open(os.path.join(log_folder, f"{os.getpid()}.jsonl"), "w", buffering=1)
errors = []
stored = threading.Barrier(clients)


def log(event, **fields):
    print(json.dumps({"event": event, **fields}), file=log_file)


class Client:
    """As much of torch's TCPStore protocol as it takes."""

    def __init__(self):
        self.socket = socket.create_connection(address)
        self.socket.sendall(struct.pack("<BIBI", 0, 0x3C85F7CE, 13, 7))
        assert self.receive(4) == struct.pack("<I", 7)

    def receive(self, length):
        received = bytearray()
        while len(received) < length:
            part = self.socket.recv(length - len(received))
            if not part:
                raise ConnectionError("the store closed the connection")
            received += part
        return bytes(received)

    def set(self, key, value):
        self.socket.sendall(b"\1" + blob(key.encode()) + blob(value))

    def ask(self, key):
        self.socket.sendall(b"\3" + blob(key.encode()))

    def answer(self):
        return self.receive(struct.unpack("<Q", self.receive(8))[0])


def blob(data):
    return struct.pack("<Q", len(data)) + data


def value(number):
    return bytes([number % 251]) * length


def use_store(number):
    try:
        client = Client()
        client.set(f"k{number}", value(number))
        # A number that is asked for tells that the value before it is stored.
        client.socket.sendall(b"\7")
        client.receive(8)
        stored.wait()
        if number == 0:
            # This client asks for more than it reads for now: it is held back, and nobody else is.
            for other in range(16):
                client.ask(f"k{other % clients}")
            while not os.path.exists(os.path.join(control, "read")):
                time.sleep(0.05)
            for other in range(16):
                assert client.answer() == value(other % clients), "another value"
            return
        for other in (number, (number + 1) % clients):
            client.ask(f"k{other}")
            assert client.answer() == value(other), "another value"
    except Exception as error:
        errors.append(f"client {number}: {error!r}")
        stored.abort()


if os.path.exists(os.path.join(control, "hold")):
    log("port", port=address[1])
    while not os.path.exists(os.path.join(control, "begin")):
        time.sleep(0.05)
threads = [threading.Thread(target=use_store, args=[number]) for number in range(clients)]
for thread in threads:
    thread.start()
for thread in threads[1:]:
    thread.join()
log("others", errors=errors)
threads[0].join()
log("all", errors=errors)
while not os.path.exists(os.path.join(control, "end")):
    time.sleep(0.05)
