"""The test kit: worlds in one process, faults, LANs of namespaces, a simulator."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ringleader.testing.inprocess import run_world, world

__all__ = ["run_world", "world"]


def __getattr__(name: str) -> object:
    if name in __all__:
        return getattr(import_module("ringleader.testing.inprocess"), name)
    raise AttributeError(f"module 'ringleader.testing' has no attribute {name!r}")
