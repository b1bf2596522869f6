"""torch calls `load` at the end of `import torch`, by the entry point `torch.backends`. It is a package of its own, because
every program that imports torch runs it: `elastic_node` loads native code and NumPy, which such a program may not want."""

from __future__ import annotations

import importlib
import os
import sys

#: The variable with names of torch's backends, separated by commas, that `elastic_node` takes over.
BACKENDS = "ELASTIC_BACKEND_FOR"

#: The package that registers itself when it is imported, and may be the one that imports torch.
_FOR_TORCH = "elastic_node.torch"


def load() -> None:
    """Makes the names in `ELASTIC_BACKEND_FOR` ours before the script asks for them. Without the variable it does nothing."""
    if os.environ.get(BACKENDS) and _FOR_TORCH not in sys.modules:
        importlib.import_module(_FOR_TORCH)
