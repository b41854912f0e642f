"""The test kit: worlds in one process, faults, LANs of namespaces, a simulator."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ringleader.testing.inprocess import run_world, world
    from ringleader.testing.lan import lan

__all__ = ["lan", "run_world", "world"]


def __getattr__(name: str) -> object:
    if name == "lan":
        return import_module("ringleader.testing.lan")  # a module that can be called
    if name in __all__:
        return getattr(import_module("ringleader.testing.inprocess"), name)
    raise AttributeError(f"module 'ringleader.testing' has no attribute {name!r}")
