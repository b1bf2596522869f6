"""The stand-in that Horovod's tests find in place of Horovod, as a plug-in of pytest; `run.py` starts it on each
rank.

Its only changes to the tests: the name of the module, and helpers that they import of packages that are not here.
"""

from __future__ import annotations

import faulthandler
import json
import os
import pickle
import signal
import sys
import types
import unittest.mock
from typing import Any, Dict

import pytest

#: Time after which a test counts as one that hangs, in seconds.
PATIENCE_S = int(os.environ.get("SUITE_PATIENCE_S", "120"))

#: Number of attempts to meet again by ranks that a failed test has left at different places.
ATTEMPTS = 8


def _module(name: str, **content: Any) -> None:
    module = types.ModuleType(name)
    vars(module).update(content)
    sys.modules[name] = module


def pytest_configure(config: Any) -> None:
    import elastic_node.torch

    # As horovodrun sets it: tests wait for each other at their ends, and initialise anew.
    os.environ["HOROVOD_RANK"], os.environ["HOROVOD_SIZE"] = os.environ["RANK"], os.environ["WORLD_SIZE"]
    _module("horovod", __path__=[])
    sys.modules["horovod.torch"] = elastic_node.torch
    for name in ("horovod.runner", "horovod.runner.util"):
        _module(name, __path__=[])
    _module("horovod.runner.util.threads", in_thread=None)
    sys.modules.setdefault("cloudpickle", pickle)
    sys.modules.setdefault("mock", unittest.mock)


def _hangs(_signal: int, _frame: Any) -> None:
    faulthandler.dump_traceback()
    _tell(nodeid=_current["nodeid"], outcome="hangs", why=f"not done after {PATIENCE_S} s")
    os._exit(1)


_current: Dict[str, str] = {}


def _tell(**result: str) -> None:
    path = os.path.join(os.environ["SUITE_RESULTS"], f"{os.environ['RANK']}.jsonl")
    with open(path, "a") as file:
        file.write(json.dumps(result) + "\n")


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: Any) -> None:
    import elastic_node as en

    _current["nodeid"] = item.nodeid
    signal.signal(signal.SIGALRM, _hangs)
    signal.alarm(PATIENCE_S)
    en.init()
    for attempt in range(ATTEMPTS):
        try:
            en.allreduce(1, name=f"begin {item.nodeid}")
            return
        except en.CollectiveError:
            if attempt == ATTEMPTS - 1:
                raise


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: Any, call: Any) -> Any:
    report = (yield).get_result()
    if call.when == "teardown":
        signal.alarm(0)
    if call.when == "call" or report.outcome != "passed":
        why = "" if report.outcome == "passed" else str(call.excinfo.value)[:300] if call.excinfo else ""
        if report.outcome == "failed" and call.excinfo:
            why = f"{call.excinfo.typename}: {why}"
        _tell(nodeid=item.nodeid, outcome=report.outcome, why=why)
