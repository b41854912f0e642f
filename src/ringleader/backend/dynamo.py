"""Excludes our methods from torch.compile.

Dynamo compiles Python frames that C++ enters from a compiled region, ours among them,
and fails on the objects it finds there. Marking the code objects costs nothing per
call.
"""

from __future__ import annotations

from types import FunctionType

import torch


def skip_compilation(kind: type) -> None:
    """Make Dynamo skip every method of ``kind``, and what they call."""
    frames = getattr(torch._C._dynamo, "eval_frame", None)
    if frames is None or not hasattr(frames, "set_code_exec_strategy"):
        return
    skip = frames._FrameAction.SKIP
    strategy = frames._FrameExecStrategy(skip, skip)
    for method in vars(kind).values():
        if isinstance(method, FunctionType):
            frames.set_code_exec_strategy(method.__code__, strategy)
