"""torch calls `load` at the end of `import torch`, by the entry point `torch.backends`. It is a package of its own, because
every program that imports torch runs it: `elastic_node` loads native code and NumPy, which such a program may not want."""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from pathlib import Path

#: The variable with names of torch's backends, separated by commas, that `elastic_node` takes over.
BACKENDS = "ELASTIC_BACKEND_FOR"

#: The variable that an agent sets for each process that it starts.
WORKER = "ELASTIC_WORKER"

#: The modules by which an agent has the stacks of a process, and the number of its collectives. They need no other one
#: of their package.
_STACKS = "elastic_node._stacks"
_FLIGHT_RECORDER = "elastic_node._flight_recorder"

#: The package that registers itself when it is imported, and may be the one that imports torch.
_FOR_TORCH = "elastic_node.torch"


def load() -> None:
    """Makes the names in `ELASTIC_BACKEND_FOR` ours before the script asks for them, and offers the stacks of a worker's
    Python threads and the number of its collectives to its agent. A process that no agent has started is left as it is."""
    if os.environ.get(WORKER):
        _offer(_STACKS)
        _offer(_FLIGHT_RECORDER)
    if os.environ.get(BACKENDS) and _FOR_TORCH not in sys.modules:
        importlib.import_module(_FOR_TORCH)


def _offer(name: str) -> None:
    """Offers something by its module alone: a script that does not use `elastic_node` need not load all of it."""
    if name in sys.modules:
        return
    package = importlib.util.find_spec("elastic_node")
    folders = package.submodule_search_locations if package else None
    for folder in folders or ():
        path = Path(folder) / f"{name.rpartition('.')[2]}.py"
        spec = importlib.util.spec_from_file_location(name, path)
        if spec is None or spec.loader is None:
            continue
        module = importlib.util.module_from_spec(spec)
        # `elastic_node` takes this one where the script imports it later: the signal has one handler.
        sys.modules[name] = module
        spec.loader.exec_module(module)
        module.offer()
        return
