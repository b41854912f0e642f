"""Compression of scripts that do not ask for it: ``ringleader run --compress int8``.

Only gradients of DistributedDataParallel are compressed, by the same hook, with error
feedback, that a script would register itself; one that does keeps its own.
"""

from __future__ import annotations

from functools import wraps
from typing import Any

import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from ringleader import settings
from ringleader.backend.name import NAME
from ringleader.compression.hooks import hook

_MARK = "_ringleader_compresses"


def install() -> None:
    """From now on, models that are made for our groups are compressed. Idempotent."""
    init: Any = DistributedDataParallel.__init__
    if hasattr(init, _MARK):
        return

    @wraps(init)
    def __init__(model: Any, *args: Any, **keywords: Any) -> None:  # noqa: ANN401, N807
        init(model, *args, **keywords)
        if dist.get_backend(model.process_group) == NAME:
            _compress(model, settings.compress())

    setattr(__init__, _MARK, True)
    DistributedDataParallel.__init__ = __init__  # type: ignore[method-assign, assignment]


def _compress(model: DistributedDataParallel, name: str) -> None:
    """At its first step, unless the script has given it a hook by then."""
    ours = hook(name)  # says at once what is wrong with the name

    def register(_: object, __: object) -> None:
        handle.remove()
        if not model._comm_hooks:
            model.register_comm_hook(model.process_group, ours)

    handle = model.register_forward_pre_hook(register)
