"""Ringleader: train one PyTorch model on every machine you own."""

from __future__ import annotations

import sys
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
    from ringleader import compression
    from ringleader.backend.engines import backends, require
    from ringleader.backend.form import BackendOptions
    from ringleader.collectives.config import CollectiveConfig
    from ringleader.groups.formation import group
    from ringleader.groups.group import Group
    from ringleader.groups.work import Work
    from ringleader.node.launch.join import join, should_rejoin
    from ringleader.parallel.same_model import same_model
    from ringleader.parallel.sync_batch_norm import SyncBatchNorm

__version__ = "0.1.0"

__all__ = [
    "BackendOptions",
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
    "SyncBatchNorm",
    "Work",
    "__version__",
    "backends",
    "compression",
    "group",
    "join",
    "require",
    "same_model",
    "should_rejoin",
]

# What needs torch is imported on first use, so that the command line starts at once.
_LAZY = {
    "BackendOptions": "ringleader.backend.form",
    "CollectiveConfig": "ringleader.collectives.config",
    "Group": "ringleader.groups.group",
    "SyncBatchNorm": "ringleader.parallel.sync_batch_norm",
    "Work": "ringleader.groups.work",
    "backends": "ringleader.backend.engines",
    "group": "ringleader.groups.formation",
    "join": "ringleader.node.launch.join",
    "require": "ringleader.backend.engines",
    "same_model": "ringleader.parallel.same_model",
    "should_rejoin": "ringleader.node.launch.join",
}


def __getattr__(name: str) -> object:
    if name in _LAZY:
        return getattr(import_module(_LAZY[name]), name)
    if name == "compression":
        return import_module("ringleader.compression")
    raise AttributeError(f"module 'ringleader' has no attribute {name!r}")


# torch registers the backend itself, through an entry point. Where that is turned off
# (TORCH_DEVICE_BACKEND_AUTOLOAD=0) or the package is not installed, importing it after
# torch does.
if "torch" in sys.modules:
    import_module("ringleader.node.launch.torch_entry_points").autoload()
