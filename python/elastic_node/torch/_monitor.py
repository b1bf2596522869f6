"""`torch.distributed.monitored_barrier` over the group's store, beside the collectives, which may hang. Called by
`_process_group`."""

from __future__ import annotations

import time
from datetime import timedelta
from typing import List, Optional

import torch.distributed as dist


def monitored_barrier(store: dist.Store, rank: int, size: int, timeout: timedelta, wait_all_ranks: bool) -> None:
    """Waits until all ranks are here; rank 0 says which one is not.

    Args:
        store: for this barrier alone.
        timeout: of rank 0's wait for all, and of the others' for rank 0.
        wait_all_ranks: rank 0 waits for all of them, and names each one that is missing, not only the first.

    Raises:
        RuntimeError: not all ranks came in time.
    """
    if rank != 0:
        store.set(str(rank), "here")
        if not _is_set(store, "end", timeout) or store.get("end") != b"all":
            raise RuntimeError(
                f"[Rank {rank}]: Rank {rank} successfully reached monitoredBarrier, but received errors while waiting for "
                "send/recv from rank 0. Please check rank 0 logs for faulty rank."
            )
        return
    failure = _missing(store, size, timeout, wait_all_ranks)
    store.set("end", "failed" if failure else "all")
    if failure:
        raise RuntimeError(f"[Rank 0]: {failure}")


def _missing(store: dist.Store, size: int, timeout: timedelta, wait_all_ranks: bool) -> Optional[str]:
    """The ranks that did not come, in gloo's words; None if all did."""
    deadline = time.monotonic() + timeout.total_seconds()
    milliseconds = round(timeout.total_seconds() * 1000)
    missing: List[int] = []
    for other in range(1, size):
        left_s = deadline - time.monotonic()
        if left_s <= 0 and not wait_all_ranks:
            return f"Rank 0 timed out in monitoredBarrier after {milliseconds} ms."
        # A rank that is looked for after the deadline counts only if it is there already.
        if not _is_set(store, str(other), timedelta(seconds=max(left_s, 0.001))):
            if not wait_all_ranks:
                return f"Rank {other} failed to pass monitoredBarrier in {milliseconds} ms"
            missing.append(other)
    if not missing:
        return None
    return f"Ranks {', '.join(map(str, missing))} failed to pass monitoredBarrier in {milliseconds} ms"


def _is_set(store: dist.Store, key: str, timeout: timedelta) -> bool:
    try:
        store.wait([key], timeout)
    except RuntimeError:  # torch's stores have no error of one kind for it.
        return False
    return True
