"""A program that opens a port of its own where torchrun's environment says that rank 0 is, and needs no torch: all
ranks meet there, and rank 0 tells each how many have come. Arguments: a folder for what each rank has seen, and a
folder with control files."""

import json
import os
import signal
import socket
import sys
import time

seen_folder, control = sys.argv[1:3]
rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
address = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))


def connect():
    while True:
        try:
            return socket.create_connection(address, timeout=5)
        except OSError:
            time.sleep(0.05)


if rank == 0:
    with socket.create_server(address) as server:
        others = [server.accept()[0] for _ in range(world_size - 1)]
    for other in others:
        other.sendall(b"%d" % world_size)
    met = world_size
else:
    with connect() as to_first:
        to_first.settimeout(None)
        met = int(to_first.recv(16))

names = "RANK MASTER_ADDR MASTER_PORT GLOO_SOCKET_IFNAME NCCL_SOCKET_IFNAME TORCHELASTIC_USE_AGENT_STORE".split()
seen = {"met": met, "world_size": world_size, **{name: os.environ.get(name) for name in names}}
path = os.path.join(seen_folder, f"{world_size}.{rank}")
with open(path + ".draft", "w") as file:
    json.dump(seen, file)
os.rename(path + ".draft", path)
while not os.path.exists(os.path.join(control, "finish")):
    time.sleep(0.05)
