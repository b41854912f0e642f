"""Compression for scripts that do not ask for it: ``ringleader run --compress int8``.

Installs, from the environment, the communication hook with error feedback that a script
would register itself. Only gradients of DistributedDataParallel are compressed, and a
script that registers its own hook keeps it.
"""

from __future__ import annotations

from functools import wraps
from typing import Any

from torch.nn.parallel import DistributedDataParallel

from ringleader import settings
from ringleader.backend.underlying_group import ringleader_group
from ringleader.compression.attached_hook import set_pending
from ringleader.compression.comm_hook import hook

_MARK = "_ringleader_compresses"


def install() -> None:
    """Compress the models that are created for our groups from now on. Idempotent."""
    init: Any = DistributedDataParallel.__init__
    if hasattr(init, _MARK):
        return

    @wraps(init)
    def __init__(model: Any, *args: Any, **keywords: Any) -> None:  # noqa: ANN401, N807
        init(model, *args, **keywords)
        if ringleader_group(model.process_group) is not None:
            _compress(model, settings.compress())

    setattr(__init__, _MARK, True)
    DistributedDataParallel.__init__ = __init__  # type: ignore[method-assign, assignment]


def _compress(model: DistributedDataParallel, name: str) -> None:
    """Register the hook at the first forward, unless the script has registered one."""
    ours = hook(name)  # raises now if the name is wrong
    set_pending(model, ours)

    def register(_: object, __: object) -> None:
        handle.remove()
        set_pending(model, None)
        if not model._comm_hooks:
            model.register_comm_hook(model.process_group, ours)

    handle = model.register_forward_pre_hook(register)
