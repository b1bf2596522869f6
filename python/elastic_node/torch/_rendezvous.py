"""`torchrun --rdzv-backend=elastic`: our driver decides who takes part, stock torchrun agents obey.

torchrun calls `creator` by the entry point `torchrun.handlers`. Each torchrun has an agent of ours beside it, with one
slot, and in that slot a member (`member.py`), which takes part in the driver's generations and tells the handler here.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import socket
import subprocess
import tempfile
import threading
from pathlib import Path
from typing import Any, Callable, Dict, Optional

import torch.distributed as dist
from torch.distributed.elastic.rendezvous import (
    RendezvousClosedError,
    RendezvousHandler,
    RendezvousInfo,
    RendezvousParameters,
    RendezvousStoreInfo,
    RendezvousTimeoutError,
)

from ._meeting import address_towards

#: The variable with the socket at which a member reaches its handler.
SOCKET = "ELASTIC_TORCHRUN_SOCKET"

#: Most time that a torchrun that has finished waits for the others, in seconds.
_FAREWELL_S = 30.0


def creator() -> Callable[[RendezvousParameters], RendezvousHandler]:
    """The entry point that torchrun calls for its rendezvous handler."""
    return ElasticRendezvousHandler


class ElasticRendezvousHandler(RendezvousHandler):
    """One torchrun agent's part in a driver's generations.

    The endpoint is the driver's address. Of `--rdzv-conf` it takes `token_file` (of the driver; found by itself on the
    driver's machine), `join_timeout` (600 s), and `program` (`elastic-node`, from the path).
    """

    def __init__(self, params: RendezvousParameters) -> None:
        self._params = params
        self._address = params.local_addr or address_towards(params.endpoint.rpartition(":")[0])
        self._join_timeout_s = float(params.get("join_timeout", 600))
        self._changed = threading.Condition()
        self._place: Optional[Dict[str, Any]] = None
        self._used_generation = -1
        self._member: Optional[socket.socket] = None
        self._store: Optional[dist.TCPStore] = None
        self._closed = False
        self._folder = tempfile.TemporaryDirectory(prefix="elastic-torchrun-")
        self._listener = socket.socket(socket.AF_UNIX)
        path = Path(self._folder.name) / "member"
        self._listener.bind(str(path))
        self._listener.listen()
        self._agent = self._start_agent(path)
        threading.Thread(target=self._serve, name="elastic-rendezvous", daemon=True).start()

    def _start_agent(self, path: Path) -> "subprocess.Popen[bytes]":
        program = self._params.get("program", "elastic-node")
        # The process id is part of the name, because several torchruns may run on one machine, as in a test.
        host = f"{self._address}-{os.getpid()}"
        command = [program, "--role", "worker", "--join", self._params.endpoint, "--host", host, "--slots", "1"]
        token_file = self._params.get("token_file")
        if token_file:
            command += ["--token-file", token_file]
        return subprocess.Popen(
            command,
            env={**os.environ, SOCKET: str(path)},
            stdin=subprocess.DEVNULL,
            preexec_fn=_end_with_parent,
        )

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            with connection, connection.makefile("r") as lines:
                self._member = connection
                for line in lines:
                    self._hear(json.loads(line))

    def _hear(self, message: Dict[str, Any]) -> None:
        if message["kind"] == "open_store":
            self._store = _store_at(self._address)
            self._tell({"host": self._address, "port": self._store.port})
            return
        with self._changed:
            self._place = message
            self._changed.notify_all()

    def _tell(self, message: Dict[str, Any]) -> None:
        assert self._member is not None
        self._member.sendall(json.dumps(message).encode() + b"\n")

    def get_backend(self) -> str:
        return "elastic"

    @property
    def use_agent_store(self) -> bool:
        return False

    def next_rendezvous(self) -> RendezvousInfo:
        """Waits for a generation that this torchrun has not taken part in yet."""
        with self._changed:
            if self._place is not None and self._place["generation"] == self._used_generation:
                # This torchrun's workers are to restart, and so are all others: the member gives the generation up.
                self._place = None
                self._tell({"do": "again"})
            arrived = self._changed.wait_for(self._is_due, self._join_timeout_s)
            if self._closed or self._agent.poll() is not None:
                raise RendezvousClosedError()
            if not arrived:
                raise RendezvousTimeoutError(f"no generation within {self._join_timeout_s} s")
            place = self._place
            assert place is not None
            self._used_generation = place["generation"]
        rank, size = place["rank"], place["size"]
        if rank == 0 and self._store is not None:
            store: dist.Store = self._store
        else:
            store = dist.TCPStore(place["host"], place["port"], is_master=False)
        store = dist.PrefixStore(f"elastic/{place['generation']}", store)
        return RendezvousInfo(store, rank, size, RendezvousStoreInfo.build(rank, store, self._address))

    def _is_due(self) -> bool:
        new = self._place is not None and self._place["generation"] != self._used_generation
        return new or self._closed or self._agent.poll() is not None

    def is_closed(self) -> bool:
        return self._closed

    def set_closed(self) -> None:
        self._closed = True

    def num_nodes_waiting(self) -> int:
        """More than 0 makes torchrun start its workers anew: there is another generation."""
        place = self._place
        return int(place is not None and place["generation"] != self._used_generation)

    def get_run_id(self) -> str:
        return str(self._params.run_id)

    def shutdown(self) -> bool:
        """This torchrun is done: its member says so, and leaves when all others are."""
        self._closed = True
        try:
            self._tell({"do": "finish"})
            self._agent.wait(_FAREWELL_S)
        except (AssertionError, OSError, subprocess.TimeoutExpired):
            self._agent.terminate()
        self._listener.close()
        self._folder.cleanup()
        return True


def _store_at(address: str) -> dist.TCPStore:
    """A store of torch's on this address alone: by itself it listens on all interfaces."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    listener = socket.create_server((address, 0), family=family)
    port = listener.getsockname()[1]
    # The store closes the socket.
    listening = listener.detach()
    return dist.TCPStore(address, port, is_master=True, wait_for_workers=False, master_listen_fd=listening)


_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None, use_errno=True)


def _end_with_parent() -> None:
    """The agent leaves when torchrun dies, however it does."""
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)

