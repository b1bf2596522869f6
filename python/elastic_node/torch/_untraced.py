"""`untraced`: keeps `torch.compile` away from the methods of what torch calls back. Used by the process group and its works."""

from __future__ import annotations

import types
from typing import TypeVar

import torch

_Type = TypeVar("_Type", bound=type)


def untraced(owner: _Type) -> _Type:
    """Has `torch.compile` run the methods of a class, and all that they call, as they are. torch calls them from C++ within
    compiled code (DistributedDataParallel as it rebuilds its buckets), takes them for code to compile, and fails.

    `torch.compiler.disable` does the same, and imports the compiler: seconds, also for programs that compile nothing.
    A torch without this mark compiles as before.
    """
    marks = torch._C._dynamo.eval_frame
    if not hasattr(marks, "set_code_exec_strategy"):
        return owner
    skip = marks._FrameExecStrategy(marks._FrameAction.SKIP, marks._FrameAction.SKIP)
    for method in vars(owner).values():
        function = method.fget if isinstance(method, property) else method
        if isinstance(function, types.FunctionType):
            marks.set_code_exec_strategy(function.__code__, skip)
    return owner
