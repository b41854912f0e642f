"""Registers the backend with torch; cheap, because every ``import torch`` runs it.

torch calls ``autoload`` at the end of its own import (entry point ``torch.backends``),
so a script needs no import of ours. The modules of a group are imported when the first
one is created.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ringleader.backend.name import NAME
from ringleader.settings.launch import note_group

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Backend, ProcessGroup

DEVICES = ["cpu", "cuda", "mps"]


def autoload() -> None:
    """Register, and log errors: an exception would break ``import torch`` itself."""
    try:
        register()
    except Exception:
        logging.getLogger(__name__).exception("the ringleader backend is not available")


def register() -> None:
    """Make ``dist.init_process_group("ringleader")`` work. Idempotent."""
    import torch.distributed as dist

    if not dist.is_available() or NAME.upper() in dist.Backend._plugins:
        return
    dist.Backend.register_backend(NAME, create, extended_api=True, devices=DEVICES)
    from ringleader.backend import default_backend, device_map, torch_patches
    from ringleader.backend.group_creation import wrap

    torch_patches.install()
    wrap(_tell_launcher)
    device_map.install()
    # Wrapped last, it runs first: a map that it replaces is no device map any more.
    default_backend.install()


def _tell_launcher(arguments: dict[str, Any], make: Callable[[], Any]) -> Any:
    """Note that this worker has a group with others, of whatever backend and store."""
    made = make()
    if arguments.get("group_size") != 1:
        note_group()
    return made


def create(request: Any, options: object) -> ProcessGroup | Backend:
    """Create a process group, or one backend of it; torch calls it."""
    from ringleader.backend.create import create_backend

    return create_backend(request, options)
