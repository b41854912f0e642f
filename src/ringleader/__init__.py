"""Ringleader: train one PyTorch model on every machine you own."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from ringleader.errors import (
    CallMismatch,
    ConfigError,
    DeadlineExceeded,
    GroupAborted,
    InternalError,
    PeerError,
    PeerLost,
    PeerRefused,
    PeerUnreachable,
    PeerUntrusted,
    ProtocolError,
    RingleaderError,
)

if TYPE_CHECKING:
    from ringleader.collectives.config import CollectiveConfig
    from ringleader.groups.form import group
    from ringleader.groups.group import Group
    from ringleader.groups.work import Work

__version__ = "0.1.0"

__all__ = [
    "CallMismatch",
    "CollectiveConfig",
    "ConfigError",
    "DeadlineExceeded",
    "Group",
    "GroupAborted",
    "InternalError",
    "PeerError",
    "PeerLost",
    "PeerRefused",
    "PeerUnreachable",
    "PeerUntrusted",
    "ProtocolError",
    "RingleaderError",
    "Work",
    "__version__",
    "group",
]

# What needs torch is imported on first use, so that the command line starts at once.
_LAZY = {
    "CollectiveConfig": "ringleader.collectives.config",
    "Group": "ringleader.groups.group",
    "Work": "ringleader.groups.work",
    "group": "ringleader.groups.form",
}


def __getattr__(name: str) -> object:
    if name in _LAZY:
        return getattr(import_module(_LAZY[name]), name)
    raise AttributeError(f"module 'ringleader' has no attribute {name!r}")
