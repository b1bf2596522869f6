"""torchrun's side of `bench rendezvous`: the seconds until all of N agents have their rank.

The c10d rendezvous of the installed torch, as torchrun uses it: one handler per agent, each a thread, in two
processes, so that one interpreter's lock is not all that is measured.
"""

import socket
import sys
import threading
import time
from multiprocessing import get_context

from torch.distributed import TCPStore
from torch.distributed.elastic.rendezvous import RendezvousParameters
from torch.distributed.elastic.rendezvous import registry

PROCESSES = 2


def join(agents, total, port, failures):
    """Joins with so many agents, and returns when each has its rank."""

    def one():
        try:
            parameters = RendezvousParameters(
                backend="c10d",
                endpoint=f"127.0.0.1:{port}",
                run_id="bench",
                min_nodes=total,
                max_nodes=total,
                is_host=False,
                join_timeout=3600,
                read_timeout=600,
            )
            registry.get_rendezvous_handler(parameters).next_rendezvous()
        except BaseException as error:
            failures.put(repr(error))

    threads = [threading.Thread(target=one) for _ in range(agents)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def child(agents, total, port, begin, failures, done):
    begin.wait()
    join(agents, total, port, failures)
    done.put(time.monotonic())
    # Handlers have threads of their own, which would go on.
    threading.Event().wait()


def main():
    total = int(sys.argv[1])
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    context = get_context("fork")
    begin, failures, done = context.Event(), context.Queue(), context.Queue()
    shares = [total // PROCESSES + (index < total % PROCESSES) for index in range(PROCESSES)]
    shares = [share for share in shares if share]
    processes = [
        context.Process(target=child, args=[share, total, port, begin, failures, done], daemon=True)
        for share in shares
    ]
    for process in processes:
        process.start()
    # The store is there before anybody looks for it; threads of its own must not be forked.
    store = TCPStore("127.0.0.1", port, is_master=True, wait_for_workers=False)
    started = time.monotonic()
    begin.set()
    ended = max(done.get() for _ in processes)
    if not failures.empty():
        sys.exit(failures.get())
    for process in processes:
        process.kill()
    print(ended - started)
    del store


if __name__ == "__main__":
    main()
