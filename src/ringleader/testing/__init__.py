"""Test kit: groups in one process, ranks in processes, virtual LANs, link checks."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ringleader.simulation.lan import lan
    from ringleader.testing.threaded_world import run_world, world

__all__ = ["lan", "run_world", "world"]

_HOMES = {
    "lan": "ringleader.simulation.lan",
    "run_world": "ringleader.testing.threaded_world",
    "world": "ringleader.testing.threaded_world",
}


def __getattr__(name: str) -> object:
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'ringleader.testing' has no attribute {name!r}")
