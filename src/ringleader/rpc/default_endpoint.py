"""The endpoints of this process, and the functions that use the last of them."""

from __future__ import annotations

import atexit
import contextlib
import os
from collections.abc import Mapping, Sequence
from typing import Any

import torch.distributed as dist

from ringleader.backend.underlying_group import ringleader_group
from ringleader.deadline import Deadline
from ringleader.errors import ConfigError
from ringleader.groups.group import Group, connect_again
from ringleader.rpc.endpoint import Endpoint
from ringleader.rpc.future import Future
from ringleader.rpc.registry import Function
from ringleader.rpc.rref import RRef
from ringleader.settings.rpc import rpc_max_bytes

_open: dict[Group, Endpoint] = {}
"""In the order of their start."""


def start(
    group: Group | dist.ProcessGroup | None = None,
    *,
    name: str = "",
    timeout: float = 60.0,
    threads: int = 16,
) -> Endpoint:
    """Start RPC between the ranks of a group; all of them must call it.

    ``group`` is one of ``ringleader.group()`` or a torch process group of the backend
    "ringleader", by default torch's world. Returns when all ranks have started it.
    ``name`` can be used as ``to`` instead of the rank; it is "worker<rank>" by default.
    ``timeout`` bounds the start, and calls that are not given a limit, in seconds.
    ``threads`` functions run at the same time.

    The functions of this module use the endpoint that was started last. For others
    call the methods of the endpoint that is returned.
    """
    ours = _find_group(group)
    if ours in _open:
        raise ConfigError("rpc.start: RPC has been started for this group already")
    if threads < 1 or not timeout > 0:
        raise ConfigError(f"rpc.start: {threads} threads, timeout {timeout}")
    max_bytes = rpc_max_bytes()
    mesh = connect_again(ours, "rpc", Deadline.after(timeout))
    _open[ours] = Endpoint.open(
        ours.rank,
        mesh,
        name=name or f"worker{ours.rank}",
        timeout=timeout,
        threads=threads,
        max_bytes=max_bytes,
    )
    return _open[ours]


def _find_group(group: Group | dist.ProcessGroup | None) -> Group:
    if group is None:
        group = dist.group.WORLD if dist.is_initialized() else None
        if group is None:
            how = "pass ringleader.group(...), or call init_process_group first"
            raise ConfigError(f"rpc.start: there is no group; {how}")
    ours = ringleader_group(group)
    if ours is None:
        text = "needs a process group of the backend 'ringleader'"
        raise ConfigError(f"rpc.start: {text}, and this one is {group!r}")
    return ours


def shutdown(*, graceful: bool = True, timeout: float | None = 60.0) -> None:
    """End all endpoints of this process; see ``Endpoint.shutdown``.

    Does nothing if there is none.
    """
    while _open:
        group = next(iter(_open))
        try:
            _open[group].shutdown(graceful=graceful, timeout=timeout)
        finally:
            _open.pop(group, None)


def _default() -> Endpoint:
    if not _open:
        raise ConfigError("RPC is not started; call rpc.start() on all ranks")
    return _open[next(reversed(_open))]


def rpc_sync(
    to: int | str,
    func: str | Function,
    args: Sequence[object] = (),
    kwargs: Mapping[str, object] | None = None,
    timeout: float | None = None,
) -> Any:  # noqa: ANN401 - any value
    """Run a registered function on rank ``to`` and return its result."""
    return _default().rpc_sync(to, func, args, kwargs, timeout)


def rpc_async(
    to: int | str,
    func: str | Function,
    args: Sequence[object] = (),
    kwargs: Mapping[str, object] | None = None,
    timeout: float | None = None,
) -> Future:
    """Run a registered function on rank ``to``; return a future of its result."""
    return _default().rpc_async(to, func, args, kwargs, timeout)


def remote(
    to: int | str,
    func: str | Function,
    args: Sequence[object] = (),
    kwargs: Mapping[str, object] | None = None,
    timeout: float | None = None,
) -> RRef:
    """Run a registered function on rank ``to``, which keeps the result."""
    return _default().remote(to, func, args, kwargs, timeout)


def rref(value: object) -> RRef:
    """Return a reference to a value of this process, for other ranks."""
    return _default().rref(value)


@atexit.register
def _end() -> None:
    """Tell the other ranks that this process ends, without waiting for them."""
    with contextlib.suppress(Exception):
        shutdown(graceful=False)


def _forget() -> None:
    """Close the connections of the parent in a forked child."""
    for endpoint in _open.values():
        endpoint.hang_up()
    _open.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
