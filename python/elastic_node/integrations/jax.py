"""JAX by restart: after ``import elastic_node.integrations.jax``, ``jax.distributed.initialize()`` needs no arguments under
`elastic-node run`.

JAX asks each cluster environment that has been imported, its own ones first. On CPU its processes exchange data by gloo, at the
address of this host's name unless they are told an interface: the name often stands for the loopback. This module tells JAX the interface by
which other hosts reach this one.
"""

from __future__ import annotations

import os
from typing import Any, Optional

from jax._src import xla_bridge
from jax._src.clusters import ClusterEnv

__all__ = ["ElasticCluster"]

#: The variable with the address at which all ranks reach a port that rank 0 opens.
_MEETING_ADDRESS = "ELASTIC_MEETING_ADDRESS"


class ElasticCluster(ClusterEnv):  # type: ignore[no-untyped-call]  # JAX leaves it without types.
    """The ranks of a generation, as its agents tell them to the workers that they start."""

    name = "elastic"

    @classmethod
    def is_env_present(cls) -> bool:
        return _MEETING_ADDRESS in os.environ

    @classmethod
    def get_coordinator_address(
        cls, timeout_secs: Optional[int], override_coordinator_port: Optional[str]
    ) -> str:
        host, _, port = os.environ[_MEETING_ADDRESS].rpartition(":")
        address = f"{host}:{override_coordinator_port or port}"
        # By default JAX listens on all interfaces, and asks nobody for a credential.
        os.environ.setdefault("JAX_COORDINATOR_BIND_ADDRESS", address)
        return address

    @classmethod
    def get_process_count(cls) -> int:
        return int(os.environ["WORLD_SIZE"])

    @classmethod
    def get_process_id(cls) -> int:
        return int(os.environ["RANK"])

    @classmethod
    def get_local_process_id(cls) -> Optional[int]:
        return int(os.environ["LOCAL_RANK"])


def _meet_by_interface() -> None:
    """Has JAX make its gloo by the interface in GLOO_SOCKET_IFNAME, if there is one when it does."""
    native: Any = getattr(xla_bridge, "_jax", None)
    make = getattr(native, "make_gloo_tcp_collectives", None)
    if make is None:
        # A release of JAX that makes it elsewhere: by the host's name.
        return

    def make_by_interface(*args: object, **kwargs: object) -> object:
        # torch takes several names, JAX one.
        interface = os.environ.get("GLOO_SOCKET_IFNAME", "").partition(",")[0]
        return make(*args, **{"interface": interface or None, **kwargs})

    native.make_gloo_tcp_collectives = make_by_interface


_meet_by_interface()
