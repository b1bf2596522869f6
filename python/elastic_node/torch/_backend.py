"""`torch.distributed` on our collectives: the backend "elastic".

torch calls `register` by the entry point `torch.distributed.backends`, and `_create` for each process group. Within a
generation of `elastic_node.elastic.run` the group of all ranks is the generation's own, which the driver watches; any
other group, as under stock torchrun, meets through torch's store.
"""

from __future__ import annotations

import os
import secrets
import socket
from datetime import timedelta
from typing import Any, Optional

import torch.distributed as dist

from .. import _context, _native, _objects
from ._process_group import ProcessGroupElastic

NAME = "elastic"

#: Addresses of the ranks are a few dozen bytes; the secret of a group is 32.
_KEY_BYTES = 32


def register() -> None:
    """Makes the name "elastic" known to `torch.distributed`. Calling it again does nothing."""
    if NAME not in dist.Backend.backend_list:
        dist.Backend.register_backend(NAME, _create, devices=["cpu", "cuda"])


def init_process_group(**kwargs: Any) -> None:
    """`torch.distributed.init_process_group("elastic")` for the generation: within a function that
    `elastic_node.elastic.run` runs, at its beginning. When the generation ends, the process group is destroyed.

    Args:
        kwargs: passed on, but for backend, store, rank and world_size.

    Raises:
        CollectiveError: a worker was lost, or the generation was aborted.
        RuntimeError: there is a default process group of the program's own.
    """
    world = _context.world()
    store = _store_of_generation(world)
    dist.init_process_group(NAME, store=store, rank=world.rank, world_size=world.size, **kwargs)


def _destroy_process_group() -> None:
    """A generation has ended: its process groups have, too."""
    if dist.is_initialized() and isinstance(dist.group.WORLD, ProcessGroupElastic):
        dist.destroy_process_group()


_context.on_generation_end(_destroy_process_group)


def _store_of_generation(world: _native.Group) -> dist.Store:
    """A store for the ranks of a generation, which sub-groups meet through."""
    if world.size == 1:
        return dist.HashStore()
    address = None
    store: Optional[dist.Store] = None
    if world.rank == 0:
        host = _own_address()
        store = dist.TCPStore(host, 0, is_master=True, wait_for_workers=False)
        address = host, store.port
    host, port = _objects.broadcast_object(address)
    return store or dist.TCPStore(host, port, is_master=False)


def _create(store: dist.Store, rank: int, size: int, timeout: timedelta) -> ProcessGroupElastic:
    """Makes a process group, for torch."""
    group = _generation_group(rank, size) or _meet(store, rank, size, timeout)
    return ProcessGroupElastic(group)


def _generation_group(rank: int, size: int) -> Optional[_native.Group]:
    """The group of all ranks, if that is what torch asks for within a generation."""
    if not _context.is_initialized() or not _context.session().in_generation:
        return None
    world = _context.world()
    return world if (world.rank, world.size) == (rank, size) else None


def _meet(store: dist.Store, rank: int, size: int, timeout: timedelta) -> _native.Group:
    """Forms a group with the ranks that use the same store."""
    meeting = _native.Meeting(_own_address())
    # A store may outlive its ranks, when they are started again: each time has keys of its own.
    attempt = store.add(f"elastic/attempt/{rank}", 1)
    prefix = f"elastic/{attempt}"
    store.set(f"{prefix}/{rank}", meeting.address)
    if rank == 0:
        store.set(f"{prefix}/key", secrets.token_hex(_KEY_BYTES))
    addresses = [store.get(f"{prefix}/{other}").decode() for other in range(size)]
    key = bytes.fromhex(store.get(f"{prefix}/key").decode())
    return meeting.form(rank, addresses, list(key), timeout.total_seconds())


def _own_address() -> str:
    """This machine's address on the way to the job's master, where the other ranks reach it too."""
    master = os.environ.get("MASTER_ADDR") or os.environ.get("ELASTIC_DRIVER", "").rpartition(":")[0]
    return address_towards(master) if master else "127.0.0.1"


def address_towards(master: str) -> str:
    """This machine's address on the way to a host."""
    family, _type, _protocol, _name, address = socket.getaddrinfo(
        master.strip("[]"), 9, type=socket.SOCK_DGRAM
    )[0]
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        # Connecting a datagram socket sends nothing: it only asks for the route.
        probe.connect(address)
        return str(probe.getsockname()[0])
