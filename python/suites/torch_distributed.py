"""torch's own tests of `torch.distributed`, which lie in its wheel. `run.py`, and `python/tests/test_torch_suite.py`, start
pytest on this file.

As in torch's own runs, `BACKEND` names the backend and `WORLD_SIZE` the number of ranks. With "gloo" the gates in these
tests are those of gloo, and `ELASTIC_BACKEND_FOR=gloo` makes that name ours. Nothing of the tests is changed but that ranks
are forked, not started anew: torch is imported once.
"""

from __future__ import annotations

import torch.multiprocessing
from torch.testing._internal.distributed import distributed_test


class TestDistributed(distributed_test.TestDistBackend, distributed_test.DistributedTest._DistTestBase):
    def setUp(self) -> None:
        super().setUp()
        self._start_processes(torch.multiprocessing.get_context("fork").Process)
