"""Measures the time that the training thread waits in torch's `DataLoader`, for the bucket `data` of goodput. Called
once, by the package."""

from __future__ import annotations

import functools
import threading
import time
from typing import Any

from torch.utils.data import dataloader

from .. import _context


def measure_data_loaders() -> None:
    """Measures each batch that the thread of the job takes from a `DataLoader`. A torch without the class that all iterators
    of loaders derive from is left as it is."""
    iterator = getattr(dataloader, "_BaseDataLoaderIter", None)
    if iterator is None or hasattr(iterator.__next__, "__wrapped__"):
        return
    take = iterator.__next__

    @functools.wraps(take)
    def measured_take(self: Any) -> Any:
        began = time.perf_counter()
        try:
            return take(self)
        finally:
            _note(time.perf_counter() - began)

    iterator.__next__ = measured_take


def _note(seconds: float) -> None:
    # The session belongs to the thread that initialised the package: the main one, or an embedder's.
    if _context.is_initialized() and _context.is_job_thread():
        _context.session().note_data_wait(seconds)
