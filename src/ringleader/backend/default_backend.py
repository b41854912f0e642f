"""Ringleader for scripts that do not ask for it: RINGLEADER_DEFAULT.

A script that calls ``init_process_group()`` without a name, or asks for Gloo, gets our
group; so do libraries that accept only the names they know. Every group of torch is
made by one function, which this module wraps. Without the variable it changes nothing.
``ringleader run`` sets it, so that a script that names no backend gets ours.

``get_backend()`` of such a group answers the name that the script gave, because scripts
and libraries compare it with their own list; without a name it answers "ringleader".
``get_backend_config()`` and the group's ``name()`` always answer "ringleader".
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from torch.distributed import distributed_c10d as c10d

from ringleader import settings
from ringleader.backend import group_creation
from ringleader.backend.name import NAME
from ringleader.settings import DefaultBackend

_REPLACED = frozenset({"gloo", NAME})
_UNNAMED = "undefined"
_log = logging.getLogger("ringleader")
_said: set[str] = set()
"""What was logged: once per name in a process."""


def install() -> None:
    """Replace Gloo where asked. Called once, when the backend is registered."""
    group_creation.wrap(_create)


def _create(arguments: dict[str, Any], make: Callable[[], Any]) -> Any:
    if "backend" not in arguments:
        return make()  # a torch that calls it otherwise
    asked = str(arguments["backend"]).lower()
    default = settings.default_backend()
    if default == DefaultBackend.NONE or asked == NAME:
        return make()
    if not is_replaced(asked, default):
        if default == DefaultBackend.ALL:  # the user expects it to be ours
            _say(asked, f"RINGLEADER_DEFAULT=1 replaces gloo only: {asked} is torch's")
        return make()
    arguments["backend_options"] = _options(arguments)
    arguments["backend"] = c10d.Backend(NAME)
    group, store = make()
    if group is not c10d.GroupMember.NON_GROUP_MEMBER:
        name = NAME if asked == _UNNAMED else asked
        c10d._world.pg_map[group] = (c10d.Backend(name), store)
        if default == DefaultBackend.ALL or group.rank() == 0:
            _say(asked, _announcement(asked, group, default))
    return group, store


def is_replaced(asked: str, default: DefaultBackend = DefaultBackend.ALL) -> bool:
    """Return whether a group of this backend, or of this device map, becomes ours.

    One group of ours handles all devices, so a map counts only if Gloo is all it names.
    """
    if default == DefaultBackend.UNNAMED:
        return asked == _UNNAMED
    names = {entry.rpartition(":")[2].strip() for entry in asked.split(",")}
    return asked == _UNNAMED or names <= _REPLACED


def _options(arguments: dict[str, Any]) -> Any:
    """Return our own ``pg_options``; those of others are ignored, as Gloo does."""
    from ringleader.backend.options import BackendOptions

    given = arguments.get("backend_options")
    return given if isinstance(given, BackendOptions) else None


def _announcement(asked: str, group: Any, default: DefaultBackend) -> str:
    replaced = "torch's default backend" if asked == _UNNAMED else asked
    devices = " and ".join(sorted(device.type for device in group._device_types))
    text = f"ringleader replaces {replaced} for {devices} tensors"
    if default == DefaultBackend.ALL:
        return f"{text} (RINGLEADER_DEFAULT=1)"
    return f"{text}: the program names no backend (--backend script: as torch does)"


def _say(asked: str, text: str) -> None:
    if asked not in _said:
        _said.add(asked)
        _log.warning(text)
