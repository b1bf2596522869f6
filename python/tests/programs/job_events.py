"""The events of the job in which a program of these tests runs. Imported by programs that wait for an action of the
driver."""

import json
import os
from pathlib import Path

#: The event log of the job.
LOG = Path(os.environ["CONTROL"]) / "state" / "events.jsonl"


def events(kind):
    """The events of one kind so far, the oldest first. The driver may be writing the last line."""
    lines = LOG.read_text().splitlines(keepends=True)
    known = [json.loads(line) for line in lines if line.endswith("\n")]
    return [event for event in known if event["kind"] == kind]


def is_named(rank):
    """Whether the driver has named this rank as one that stands still. Others may be named as possible while programs start:
    a busy machine imports torch in one of them seconds before the others have it."""
    return any(event["rank"] == rank for event in events("worker_stalled"))
