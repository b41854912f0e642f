"""Calls to functions on other ranks of a group.

@rpc.register
def add(a, b): ...

rpc.start()
rpc.rpc_sync(1, add, args=(a, b))
rpc.shutdown()
"""

from ringleader.rpc.default_endpoint import (
    remote,
    rpc_async,
    rpc_sync,
    rref,
    shutdown,
    start,
)
from ringleader.rpc.endpoint import Endpoint
from ringleader.rpc.future import Future
from ringleader.rpc.registry import register
from ringleader.rpc.remote_error import RemoteError
from ringleader.rpc.rref import RRef

__all__ = [
    "Endpoint",
    "Future",
    "RRef",
    "RemoteError",
    "register",
    "remote",
    "rpc_async",
    "rpc_sync",
    "rref",
    "shutdown",
    "start",
]
