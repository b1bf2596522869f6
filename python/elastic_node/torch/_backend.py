"""`torch.distributed` on our collectives: the backend "elastic", and "gloo" if `ELASTIC_BACKEND_FOR` says so.

torch calls `register` by the entry point `torch.distributed.backends`, and `_create` for each process group. Within a
generation of `elastic_node.elastic.run` the group of all ranks is the generation's own, which the driver watches; any
other group, as under stock torchrun, meets through torch's store.
"""

from __future__ import annotations

import gc
import os
import secrets
import sys
import warnings
import weakref
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Callable, Iterator, Set, Tuple, TypedDict, Union

import torch
import torch.distributed as dist

from elastic_node_autoload import BACKENDS

from .. import _context, _native, _objects
from ._meeting import NAME_BYTES, STORE_ADDRESS, MeetingPlace, store_of_job
from ._process_group import ProcessGroupElastic

if TYPE_CHECKING:
    from typing_extensions import Unpack

NAME = "elastic"

#: The only name of torch's that this package takes over.
_GLOO = "gloo"

#: Timeout of waiting for a key of a generation's store, unless a call sets another.
_STORE_TIMEOUT = timedelta(seconds=300)


def register() -> None:
    """Makes the name "elastic" known to `torch.distributed`, and takes over those in `ELASTIC_BACKEND_FOR`. Calling it again
    does nothing.

    Raises:
        RuntimeError: this torch does not let a package take over its backends.
        ValueError: `ELASTIC_BACKEND_FOR` has a name that is not "gloo" or "elastic".
    """
    if NAME in dist.Backend.backend_list:
        return
    dist.Backend.register_backend(NAME, _create, devices=["cpu", "cuda"])
    # Torch's flight recorder reads the name of a group from a backend in C++, and fails where there is none.
    recording: Set[str] = getattr(dist.distributed_c10d, "_FR_SELF_RECORDING_BACKENDS", set())
    recording.add(NAME)
    _meet_within_generations()
    for name in filter(None, os.environ.get(BACKENDS, "").split(",")):
        if name == _GLOO:
            _take_over_gloo()
        elif name != NAME:
            raise ValueError(f"{BACKENDS} has {name!r}: only gloo can be taken over")


def _take_over_gloo() -> None:
    # In torch 2.14 its own backends became plug-ins of this kind, which it registers when they are asked for.
    getattr(dist.Backend, "_ensure_backend_registered", lambda _name: None)(_GLOO)
    plugin = dist.Backend._plugins.get(_GLOO.upper())
    if plugin is None:
        raise RuntimeError(f"{BACKENDS}={_GLOO} needs torch 2.14 or later, this is {torch.__version__}")
    of_torch: Callable[..., Any] = plugin.creator_fn
    kind = dist.Backend.backend_type_map[_GLOO]

    def create(options: Any, backend_options: Any) -> Any:
        if torch.accelerator.is_available():
            # The group may have another backend for the accelerator, beside which torch takes no backend in Python.
            warnings.warn(f"{BACKENDS}={_GLOO} is for machines without an accelerator: this gloo is torch's")
            return of_torch(options, backend_options)
        return _create(options.store, options.group_rank, options.group_size, options.timeout, _GLOO)

    dist.Backend.register_backend(_GLOO, create, extended_api=True, devices=["cpu", "cuda"])
    dist.Backend.backend_type_map[_GLOO] = kind


def _meet_within_generations() -> None:
    """Has `env://`, torch's default, meet through the job's store within a generation: the variables of a process are those
    of its start, and rank 0's address changes with the generation."""
    handlers = sys.modules["torch.distributed.rendezvous"]._rendezvous_handlers
    of_torch = handlers["env"]

    def meet(url: str, **kwargs: Any) -> Iterator[Tuple[dist.Store, int, int]]:
        if not _context.in_generation():
            return of_torch(url, **kwargs)  # type: ignore[no-any-return]
        world = _context.world()
        return iter([(_store_of_generation(world), world.rank, world.size)])

    handlers["env"] = meet


class GroupOptions(TypedDict, total=False):
    """Arguments that `init_process_group` passes on to torch's function of that name."""

    #: Time limit of one operation.
    timeout: timedelta
    group_name: str
    pg_options: object
    device_id: Union[torch.device, int]


def init_process_group(**kwargs: Unpack[GroupOptions]) -> None:
    """`torch.distributed.init_process_group("elastic")` within a function that `elastic_node.elastic.run` runs, at its
    beginning; that call itself does the same there. When the generation ends, the process group is destroyed.

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
    if not dist.is_initialized() or not isinstance(dist.group.WORLD, ProcessGroupElastic):
        return
    group = weakref.ref(dist.group.WORLD)
    dist.destroy_process_group()
    if group() is not None:
        # A replica of DistributedDataParallel in a cycle of objects: its hooks, which wait for the rest of a step that was broken
        # off, would take the next generation's gradients.
        gc.collect()


def _check_no_outer_group() -> None:
    """Refuses a process group that was made before `run`: a rank that comes later could never join it."""
    if _context.is_in_run() and dist.is_initialized() and isinstance(dist.group.WORLD, ProcessGroupElastic):
        raise RuntimeError(
            'torch.distributed.init_process_group("elastic") was called before elastic_node.elastic.run, whose generations have process '
            "groups of their own: call it at the beginning of the training function, and make DistributedDataParallel behind it"
        )


_context.on_generation_begin(_check_no_outer_group)
_context.on_generation_end(_destroy_process_group)


def _store_of_generation(world: _native.Group) -> dist.Store:
    """A store for the ranks of a generation, which sub-groups meet through."""
    if world.size == 1:
        return dist.HashStore()
    # Each generation has keys of its own, because the job's store outlives it.
    name = _objects.broadcast_object(secrets.token_hex(NAME_BYTES) if world.rank == 0 else None)
    store = store_of_job(_STORE_TIMEOUT)
    if store is None:
        raise RuntimeError(f"{STORE_ADDRESS} is not set: this process was not started by an agent of elastic-node")
    return dist.PrefixStore(f"elastic/{name}", store)


def _create(store: dist.Store, rank: int, size: int, timeout: timedelta, name: str = NAME) -> ProcessGroupElastic:
    """Makes a process group, for torch."""
    place = MeetingPlace(store, rank, size, timeout)
    world = _context.world() if _context.in_generation() else None
    if world is not None and not dist.is_initialized() and (world.rank, world.size) == (rank, size):
        # Every other group of all ranks is one of its own, whose calls do not meet this one's.
        group = world
    else:
        # A part of the generation ends with it; any other group stands alone.
        group = place.group(world)
    return ProcessGroupElastic(group, name, store, place, timeout)
