"""Ringleader: train one PyTorch model on every machine you own."""

from __future__ import annotations

import sys
from importlib import import_module
from typing import TYPE_CHECKING

from ringleader.errors import (
    CallMismatch,
    ConfigError,
    DeadlineExceeded,
    Expelled,
    GroupAborted,
    InternalError,
    LayoutMismatch,
    PeerError,
    PeerFailed,
    PeerLost,
    PeerRefused,
    PeerUnreachable,
    PeerUntrusted,
    ProtocolError,
    RingleaderError,
    RunError,
    StateLost,
    TooFewMembers,
)

if TYPE_CHECKING:
    from ringleader import checkpoint, compression, metrics, rpc
    from ringleader.backend.availability import backends, require_backend
    from ringleader.backend.options import BackendOptions
    from ringleader.checkpoint.resume import resume
    from ringleader.collectives.config import CollectiveConfig
    from ringleader.dashboard.log import log
    from ringleader.data.fetch import fetch
    from ringleader.data.served_dataset import dataset
    from ringleader.data.shard import shard
    from ringleader.groups.formation import group
    from ringleader.groups.group import Group
    from ringleader.groups.work import Work
    from ringleader.node.launch.join import join, should_rejoin
    from ringleader.node.worker.worker_node import WorkerNode
    from ringleader.parallel.parallelize import parallelize
    from ringleader.parallel.sync_batch_norm import SyncBatchNorm
    from ringleader.parallel.sync_module_states import sync_module_states
    from ringleader.tracing.trace import trace
    from ringleader.training.elastic import elastic
    from ringleader.training.run import ElasticRun

__version__ = "0.1.0"

__all__ = [
    "BackendOptions",
    "CallMismatch",
    "CollectiveConfig",
    "ConfigError",
    "DeadlineExceeded",
    "ElasticRun",
    "Expelled",
    "Group",
    "GroupAborted",
    "InternalError",
    "LayoutMismatch",
    "PeerError",
    "PeerFailed",
    "PeerLost",
    "PeerRefused",
    "PeerUnreachable",
    "PeerUntrusted",
    "ProtocolError",
    "RingleaderError",
    "RunError",
    "StateLost",
    "SyncBatchNorm",
    "TooFewMembers",
    "Work",
    "WorkerNode",
    "__version__",
    "backends",
    "checkpoint",
    "compression",
    "dataset",
    "elastic",
    "fetch",
    "group",
    "join",
    "log",
    "metrics",
    "parallelize",
    "require_backend",
    "resume",
    "rpc",
    "shard",
    "should_rejoin",
    "sync_module_states",
    "trace",
]

# Names whose modules import torch are loaded on first use, so that the command line
# starts quickly.
_LAZY = {
    "BackendOptions": "ringleader.backend.options",
    "CollectiveConfig": "ringleader.collectives.config",
    "Group": "ringleader.groups.group",
    "ElasticRun": "ringleader.training.run",
    "SyncBatchNorm": "ringleader.parallel.sync_batch_norm",
    "Work": "ringleader.groups.work",
    "WorkerNode": "ringleader.node.worker.worker_node",
    "backends": "ringleader.backend.availability",
    "dataset": "ringleader.data.served_dataset",
    "elastic": "ringleader.training.elastic",
    "fetch": "ringleader.data.fetch",
    "group": "ringleader.groups.formation",
    "join": "ringleader.node.launch.join",
    "log": "ringleader.dashboard.log",
    "parallelize": "ringleader.parallel.parallelize",
    "require_backend": "ringleader.backend.availability",
    "resume": "ringleader.checkpoint.resume",
    "shard": "ringleader.data.shard",
    "should_rejoin": "ringleader.node.launch.join",
    "sync_module_states": "ringleader.parallel.sync_module_states",
    "trace": "ringleader.tracing.trace",
}


def __getattr__(name: str) -> object:
    if name in _LAZY:
        return getattr(import_module(_LAZY[name]), name)
    if name in ("checkpoint", "compression", "metrics", "rpc"):
        return import_module(f"ringleader.{name}")
    raise AttributeError(f"module 'ringleader' has no attribute {name!r}")


def __dir__() -> list[str]:
    """Return the public names: neither imported submodules nor what this file uses."""
    return list(__all__)


# Importing torch registers the backend through an entry point. If that is turned off
# (TORCH_DEVICE_BACKEND_AUTOLOAD=0) or the package is not installed, importing
# ringleader after torch registers it here.
if "torch" in sys.modules:
    import_module("ringleader.node.launch.torch_entry_points").autoload()
