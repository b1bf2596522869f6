"""The exchange of addresses and secrets between the ranks of a process group, to form a group of ours. Called by
`_backend`, and by `_mail` for pairs of ranks."""

from __future__ import annotations

import os
import secrets
import socket
import threading
import time
from datetime import timedelta
from typing import Optional

import torch.distributed as dist

from .. import _native

#: Bytes of a group's secret.
_KEY_BYTES = 32

#: Random bytes of a group's name, enough to make it unique.
NAME_BYTES = 16

#: The variable with the address at which an agent of elastic-node serves the job's store to its workers.
STORE_ADDRESS = "ELASTIC_STORE_ADDRESS"

#: Interval of looking for a key of a pair, in seconds.
_LOOK_EVERY_S = 0.002

#: Timeout of one operation of a pair, in seconds: a year. A receive may wait for as long as its group lives.
_PAIR_OPERATION_TIMEOUT_S = 365 * 24 * 3600.0


#: Set when the interpreter exits: no thread may be in C++ then.
exits = threading.Event()


class MeetingPlace:
    """The keys of one process group in the store that torch gave it.

    Torch's own store is open to everyone. Under an agent of ours the ranks agree there on a name in the job's store, and
    put their secrets into that.
    """

    def __init__(self, store: dist.Store, rank: int, size: int, timeout: timedelta) -> None:
        self._rank, self._size, self._timeout = rank, size, timeout
        # Each attempt has keys of its own, because a store may outlive ranks that are restarted.
        attempt = store.add(f"elastic/attempt/{rank}", 1)
        self._agreed = dist.PrefixStore(f"elastic/{attempt}", store)
        if rank == 0:
            self._agreed.set("name", secrets.token_hex(NAME_BYTES))
        # Opened when it is needed: the group of a whole generation needs none until two ranks send to each other.
        self._store: Optional[dist.Store] = None
        self._opening = threading.Lock()

    def group(self, within: Optional[_native.Group]) -> _native.Group:
        """The group of all ranks. All of them call it. Blocks."""
        store = self._secret_store()
        meeting = _native.Meeting(_own_address())
        store.set(str(self._rank), meeting.address)
        if self._rank == 0:
            store.set("key", secrets.token_hex(_KEY_BYTES))
        addresses = [store.get(str(other)).decode() for other in range(self._size)]
        key = bytes.fromhex(store.get("key").decode())
        return meeting.form(self._rank, addresses, list(key), self._timeout.total_seconds(), within)

    def pair(self, sender: int, receiver: int, within: _native.Group) -> _native.Group:
        """The group of two ranks by which the first one sends to the second. Both call it. Blocks, and leaves the store to
        other threads meanwhile.

        Raises:
            CollectiveError: the other rank did not come in time, or `within` was aborted.
        """
        deadline = time.monotonic() + self._timeout.total_seconds()
        self._look_for(self._agreed, "name", within, deadline)
        store = dist.PrefixStore(f"{sender}-{receiver}", self._secret_store())
        meeting = _native.Meeting(_own_address())
        place = int(self._rank == receiver)
        store.set(str(place), meeting.address)
        if place == 0:
            store.set("key", secrets.token_hex(_KEY_BYTES))
        for key in ("0", "1", "key"):
            self._look_for(store, key, within, deadline)
        addresses = [store.get("0").decode(), store.get("1").decode()]
        secret = list(bytes.fromhex(store.get("key").decode()))
        timeout_s = self._timeout.total_seconds()
        return meeting.form(place, addresses, secret, timeout_s, within, _PAIR_OPERATION_TIMEOUT_S)

    def _look_for(self, store: dist.Store, key: str, within: _native.Group, deadline: float) -> None:
        while not store.check([key]):
            if within.aborted is not None:
                raise _native.CollectiveError(within.aborted)
            if time.monotonic() > deadline:
                timeout_s = self._timeout.total_seconds()
                raise _native.CollectiveError(f"the other rank did not come to send or receive within {timeout_s} s")
            if exits.wait(_LOOK_EVERY_S):
                raise _native.CollectiveError("the interpreter exits")

    def _secret_store(self) -> dist.Store:
        with self._opening:
            if self._store is None:
                name = self._agreed.get("name").decode()
                of_job = store_of_job(self._timeout)
                self._store = self._agreed if of_job is None else dist.PrefixStore(f"elastic/{name}", of_job)
            return self._store


def store_of_job(timeout: timedelta) -> Optional[dist.Store]:
    """The job's store, which this host's agent serves to its own workers and to nobody else. None under any other
    launcher."""
    host, _, port = os.environ.get(STORE_ADDRESS, "").rpartition(":")
    return dist.TCPStore(host, int(port), is_master=False, timeout=timeout) if host else None


def _own_address() -> str:
    """The address at which the other ranks reach this one: the one that its agent says, else the one on the way to
    the driver, or to stock torchrun's master."""
    told = os.environ.get("ELASTIC_DATA_ADDRESS")
    if told:
        return told
    driver = os.environ.get("ELASTIC_DRIVER", "").partition(",")[0].rpartition(":")[0]
    towards = driver or os.environ.get("MASTER_ADDR")
    return address_towards(towards) if towards else "127.0.0.1"


def address_towards(master: str) -> str:
    """This machine's address on the way to a host."""
    family, _type, _protocol, _name, address = socket.getaddrinfo(
        master.strip("[]"), 9, type=socket.SOCK_DGRAM
    )[0]
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        # Connecting a datagram socket sends nothing: it only looks up the route.
        probe.connect(address)
        return str(probe.getsockname()[0])
