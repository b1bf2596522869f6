"""A torchrun agent's member in the driver's generations: the program of the driver's command line,

    elastic-node --role driver -n 2 --min-np 1 -- python -m elastic_node.torch.member

where the agents are torchruns with `--rdzv-backend=elastic --rdzv-endpoint=DRIVER`.
"""

from __future__ import annotations

import json
import os
import select
import socket
from typing import Any, Dict, Optional

import elastic_node as en

#: Interval of checks whether the generation has ended, in seconds.
_LOOK_EVERY_S = 0.1


class _Handler:
    """The torchrun agent's side (`_rendezvous.py`)."""

    def __init__(self) -> None:
        path = os.environ.get("ELASTIC_TORCHRUN_SOCKET")
        if path is None:
            raise SystemExit("error: this program is started by `torchrun --rdzv-backend=elastic`")
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.connect(path)
        self._lines = self._socket.makefile("r")

    def tell(self, kind: str, **content: Any) -> None:
        self._socket.sendall(json.dumps({"kind": kind, **content}).encode() + b"\n")

    def hear(self) -> Dict[str, Any]:
        line = self._lines.readline()
        if not line:
            raise RuntimeError("torchrun is gone")
        return json.loads(line)  # type: ignore[no-any-return]

    def hear_within(self, seconds: float) -> Optional[Dict[str, Any]]:
        ready, _, _ = select.select([self._socket], [], [], seconds)
        return self.hear() if ready else None


@en.elastic.run
def serve(state: en.elastic.State, handler: _Handler) -> None:
    address = None
    if en.rank() == 0:
        handler.tell("open_store")
        address = handler.hear()
    address = en.broadcast_object(address)
    handler.tell("place", rank=en.rank(), size=en.size(), generation=en.generation(), **address)
    while True:
        message = handler.hear_within(_LOOK_EVERY_S)
        if message is None:
            state.check_host_updates()
        elif message["do"] == "finish":
            return
        else:
            raise RuntimeError("torchrun starts its workers anew")


if __name__ == "__main__":
    en.init()
    serve(en.elastic.ObjectState(), _Handler())
