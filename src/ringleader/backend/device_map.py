"""Device maps that name us beside another backend: ``cpu:gloo,cuda:ringleader``.

From torch 2.14 on each device gets the backend that the map names: our group serves as
one backend of torch's group. Before, a backend in Python replaces the whole group. Then
ours serves every device, which a warning says, and ``get_backend_config`` answers so.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

from torch._C._distributed_c10d import Backend
from torch.distributed import distributed_c10d as c10d

from ringleader.backend import group_creation
from ringleader.backend.name import NAME

_log = logging.getLogger("ringleader")
_said: set[str] = set()
"""The maps that were logged: once in a process."""
_parts: ContextVar[list[Backend] | None] = ContextVar("ringleader_parts", default=None)


def install() -> None:
    """Handle device maps. Called once, when the backend is registered."""
    group_creation.wrap(_create)


def shared_parts() -> list[Backend] | None:
    """Return our parts of the group that is being created; None if it is all ours.

    torch asks for a part per device; ours serves all devices that the map gives us.
    """
    return _parts.get()


def is_mixed(asked: str) -> bool:
    """Return whether a map names us and another backend."""
    names = {entry.rpartition(":")[2].strip() for entry in asked.split(",")}
    return ":" in asked and NAME in names and len(names) > 1


def with_us_everywhere(asked: str) -> str:
    """Return the map with our name for each of its devices."""
    devices = [entry.partition(":")[0].strip() for entry in asked.split(",")]
    return ",".join(f"{device}:{NAME}" for device in devices)


def _create(arguments: dict[str, Any], make: Callable[[], Any]) -> Any:
    if "backend" not in arguments:
        return make()  # a torch that calls it otherwise
    asked = str(arguments["backend"]).lower()
    if not is_mixed(asked):
        return make()
    from ringleader.backend.device_backend import can_subclass

    if can_subclass():
        token = _parts.set([])
        try:
            return make()
        finally:
            _parts.reset(token)
    arguments["backend"] = c10d.Backend(with_us_everywhere(asked))
    if asked not in _said:
        _said.add(asked)
        _log.warning(
            "%s: this torch cannot mix a backend in Python with others (2.14 can), so "
            "ringleader serves every device of the group",
            asked,
        )
    return make()
