"""Sixteen of torch's TCPStore clients store and read 4 MiB each, at the same time, through one agent."""

import os
import threading

import torch.distributed as dist

CLIENTS, BYTES = 16, 4 << 20
read = []


def use_store(number):
    host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    store = dist.TCPStore(host, port, is_master=False, wait_for_workers=False)
    store.set(f"k{number}", "x" * BYTES)
    other = store.get(f"k{(number + 1) % CLIENTS}")
    assert len(other) == BYTES
    read.append(number)


threads = [threading.Thread(target=use_store, args=[number]) for number in range(CLIENTS)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print(f"read {len(read)} values", flush=True)
assert len(read) == CLIENTS
