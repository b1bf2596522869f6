"""Horovod's timeline: a trace of the calls, for chrome://tracing and Perfetto. The collectives launch through here."""

from __future__ import annotations

import json
import threading
import time
from typing import Any, Dict, List, Optional

from . import _context, _native
from ._handle import waits_at_once

#: Most events of one timeline; further ones are left out.
EVENTS_MAX = 1_000_000


class _Timeline:
    """The events that are recorded until `stop_timeline`."""

    def __init__(self, path: str, mark_cycles: bool) -> None:
        self.path, self.mark_cycles = path, mark_cycles
        self.started = time.time()
        self.lock = threading.Lock()
        self.lanes: Dict[str, int] = {}
        self.events: List[Dict[str, Any]] = []

    def add(self, label: str, **event: Any) -> None:
        with self.lock:
            lane = self.lanes.setdefault(label, len(self.lanes) + 1)
            if len(self.events) < EVENTS_MAX:
                at_us = round((time.time() - self.started) * 1e6)
                self.events.append({"pid": lane, "ts": at_us, **event})

    def write(self) -> None:
        with self.lock:
            start = {
                "name": "start_time_since_epoch_in_micros",
                "ph": "M",
                "pid": 0,
                "args": {"start_time_since_epoch_in_micros": round(self.started * 1e6)},
            }
            names = [
                {"name": "process_name", "ph": "M", "pid": lane, "args": {"name": label}}
                for label, lane in self.lanes.items()
            ]
            with open(self.path, "w") as file:
                json.dump([start, *names, *self.events], file)


_active: Optional[_Timeline] = None


def start_timeline(file_path: str, mark_cycles: bool = False) -> None:
    """Begins to record this rank's calls; rank 0 writes them to `file_path` at `stop_timeline`, as a trace that
    chrome://tracing and Perfetto show. One that is being recorded goes on.

    Args:
        file_path: the file.
        mark_cycles: also marks when ranks agreed on a call.
    """
    global _active
    if _active is None:
        _active = _Timeline(file_path, mark_cycles)


def stop_timeline() -> None:
    """Ends the recording, and writes it.

    Raises:
        OSError: the file cannot be written.
    """
    global _active
    timeline, _active = _active, None
    if timeline is not None and _context.place()[0] == 0:
        timeline.write()


def launch(group: _native.Group, call: _native.Call, activity: str, name: Optional[str]) -> _native.Handle:
    """Launches a call, and records its life where a timeline is on: its negotiation, then the operation."""
    launch = group.run_call if waits_at_once() else group.launch_call
    timeline = _active
    if timeline is None:
        return launch(call)
    label = f"{activity.lower()}.{name or 'noname'}"
    timeline.add(label, name=f"NEGOTIATE_{activity}", ph="B")

    def begun() -> None:
        timeline.add(label, ph="E")
        if timeline.mark_cycles:
            timeline.add("cycles", name="CYCLE_START", ph="i", s="g")
        timeline.add(label, name=activity, ph="B")

    call.observe(begun, lambda: timeline.add(label, ph="E"))
    return launch(call)
