"""Keeps torch.compile out of our methods.

Dynamo compiles Python frames that C++ enters from a compiled region, ours among them,
and stumbles over the objects it finds there. Marking the code costs nothing per call.
"""

from __future__ import annotations

from types import FunctionType

import torch


def skip_compilation(kind: type) -> None:
    """No method of ``kind`` is ever compiled."""
    frames = getattr(torch._C._dynamo, "eval_frame", None)
    if frames is None or not hasattr(frames, "set_code_exec_strategy"):
        return
    skip = frames._FrameAction.SKIP
    strategy = frames._FrameExecStrategy(skip, skip)
    for method in vars(kind).values():
        if isinstance(method, FunctionType):
            frames.set_code_exec_strategy(method.__code__, strategy)
