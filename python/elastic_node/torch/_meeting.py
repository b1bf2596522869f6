"""The exchange of addresses and secrets between the ranks of a process group, to form a group of ours. Called by
`_backend`, and by `_mail` for pairs of ranks."""

from __future__ import annotations

import os
import secrets
import socket
import threading
import time
from datetime import timedelta
from typing import List, Optional

import torch.distributed as dist

from .. import _native

#: Bytes of a group's secret.
_KEY_BYTES = 32

#: Random bytes of a group's name, enough to make it unique.
NAME_BYTES = 16

#: The variable with the address at which an agent of elastic-node serves the job's store to its workers.
STORE_ADDRESS = "ELASTIC_STORE_ADDRESS"

#: Interval of looking for a key at first, in seconds. It doubles with each look, up to a maximum.
_LOOK_EVERY_S = 0.002
_LOOK_EVERY_MAX_S = 0.05

#: Timeout of one operation of a pair, in seconds: a year. A receive may wait for as long as its group lives.
_PAIR_OPERATION_TIMEOUT_S = 365 * 24 * 3600.0


#: Number of the latest default process group, as its store counts them. All ranks are members of it. 0 before the first one.
_default = 0

#: Set when the interpreter exits: no thread may be in C++ then.
exits = threading.Event()


class MeetingPlace:
    """The keys of one process group in the store that torch gave it.

    Torch's own store is open to everyone. Under an agent of ours the ranks agree there on a name in the job's store, and
    put their secrets into that.
    """

    def __init__(self, store: dist.Store, rank: int, size: int, timeout: timedelta) -> None:
        self._rank, self._size, self._timeout = rank, size, timeout
        # Each attempt has keys of its own, because a store may outlive ranks that are restarted. Other groups are counted
        # within the default one, which all ranks have made equally often: torch gives their names again after it, and a rank
        # may have been in no former group of that name.
        if not dist.is_initialized():
            attempt = _count_default(store, rank)
        else:
            attempt = f"{_default}/{store.add(f'elastic/attempt/{_default}/{rank}', 1)}"
        self._agreed = dist.PrefixStore(f"elastic/{attempt}", store)
        if rank == 0:
            self._agreed.set("name", secrets.token_hex(NAME_BYTES))
        # Opened when it is needed: the group of a whole generation needs none until two ranks send to each other.
        self._store: Optional[dist.Store] = None
        self._opening = threading.Lock()

    def group(self, within: Optional[_native.Group]) -> _native.Group:
        """The group of all ranks. All of them call it. Blocks, and hears signals meanwhile.

        Raises:
            CollectiveError: `within` was aborted.
            DistStoreError: not all ranks came in time.
        """
        deadline = time.monotonic() + self._timeout.total_seconds()
        if not self._comes(self._agreed, ["name"], within, deadline):
            raise self._late([0])
        store = self._secret_store()
        meeting = _native.Meeting(_own_address())
        store.set(str(self._rank), meeting.address)
        if self._rank == 0:
            store.set("key", secrets.token_hex(_KEY_BYTES))
        ranks = [str(other) for other in range(self._size)]
        # Rank 0 is here once its key is.
        if not self._comes(store, [*ranks, "key"], within, deadline):
            raise self._late([rank for rank, key in enumerate(ranks) if not store.check([key])])
        addresses = [store.get(rank).decode() for rank in ranks]
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
        if not self._comes(store, [key], within, deadline):
            timeout_s = self._timeout.total_seconds()
            raise _native.CollectiveError(f"the other rank did not come to send or receive within {timeout_s} s")

    def _comes(
        self, store: dist.Store, keys: List[str], within: Optional[_native.Group], deadline: float
    ) -> bool:
        """Waits until the store has all keys; false after the deadline. The store's own wait would end neither with `within`
        nor by a signal."""
        pause_s = _LOOK_EVERY_S
        while not store.check(keys):
            if within is not None and within.aborted is not None:
                raise _native.CollectiveError(within.aborted)
            if time.monotonic() > deadline:
                return False
            if exits.wait(pause_s):
                raise _native.CollectiveError("the interpreter exits")
            pause_s = min(2 * pause_s, _LOOK_EVERY_MAX_S)
        return True

    def _late(self, missing: List[int]) -> dist.DistStoreError:
        ranks = f"rank{'s' * (len(missing) > 1)} {', '.join(map(str, missing))}"
        timeout_s = self._timeout.total_seconds()
        return dist.DistStoreError(
            f"{ranks} of a new group of {self._size} did not come within {timeout_s} s: all its members make it, in the same order "
            "as other groups"
        )

    def _secret_store(self) -> dist.Store:
        with self._opening:
            if self._store is None:
                name = self._agreed.get("name").decode()
                of_job = store_of_job(self._timeout)
                self._store = self._agreed if of_job is None else dist.PrefixStore(f"elastic/{name}", of_job)
            return self._store


def _count_default(store: dist.Store, rank: int) -> str:
    """Counts a default process group that is being made."""
    global _default
    _default = store.add(f"elastic/attempt/{rank}", 1)
    return str(_default)


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
