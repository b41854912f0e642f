"""The object that torch finds when it asks a process group for the backend of a device.

torch 2.14 and later ask for one: hooks that torch attaches to every group (the health
check of 2.15), and C++ callers of methods that the group's trampoline does not forward.
``DeviceBackend`` answers all of them by calling the group. Older releases do not let
Python classes be backends; there, a device is registered without one.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from datetime import timedelta
from typing import Any

import torch
from torch._C._distributed_c10d import Backend, ProcessGroup
from torch.autograd import profiler

from ringleader.backend import dynamo
from ringleader.backend.name import NAME
from ringleader.backend.profiling import OPERATIONS, record
from ringleader.errors import ConfigError

_FORWARDED = (
    "_get_sequence_number_for_group",
    "_set_sequence_number_for_group",
    "abort",
    "all_gather_single",
    "all_gather_single_coalesced",
    "all_to_all_single",
    "allgather",
    "allgather_coalesced",
    "allreduce",
    "allreduce_coalesced",
    "alltoall",
    "barrier",
    "broadcast",
    "end_coalescing",
    "gather",
    "gather_single",
    "recv",
    "recv_anysource",
    "reduce",
    "reduce_scatter",
    "reduce_scatter_single",
    "reduce_scatter_single_coalesced",
    "scatter",
    "send",
    "set_timeout",
    "shutdown",
    "start_coalescing",
)
"""Methods that torch calls and the group has, with the same arguments."""


class DeviceBackend(Backend):
    """The backend of all devices of one group.

    ``find_group`` returns the group, or None once it is gone.
    """

    # Where one is missing, torch's own asks this object again, for ever.
    supports_splitting = False
    supports_coalescing = False
    supports_shrinking = False
    supports_reconfigure = False
    supports_window = False
    _supports_time_estimate = False

    def __init__(
        self, rank: int, size: int, find_group: Callable[[], ProcessGroup | None]
    ) -> None:
        super().__init__(rank, size)
        self._find_group = find_group

    def getBackendName(self) -> str:  # noqa: N802 - torch's name
        return NAME

    name = getBackendName

    @property
    def options(self) -> Backend.Options:
        """Return what torch passes on to groups that it splits; ours has no options.

        torch's own property would call itself for a backend in Python.
        """
        timeout_s = self._group.group.timeout_s
        return Backend.Options(NAME, timedelta(seconds=timeout_s))

    def split(self, *_: object) -> Backend:
        """Refuse: forming a new group costs no more."""
        raise ConfigError("ringleader groups cannot be split; use new_group instead")

    def supports_tensor_alloc(self, device: object) -> bool:
        return False

    def allreduce_sparse(self, tensors: Any, opts: Any = None) -> Any:
        return self._group.allreduce(tensors, opts)

    def monitored_barrier(self, opts: Any = None, wait_all_ranks: bool = False) -> None:
        """Wait for all ranks; C++ passes options where Python passes a timeout."""
        timeout = getattr(opts, "timeout", opts)
        if isinstance(timeout, timedelta) and timeout <= timedelta(0):
            timeout = None
        self._group.monitored_barrier(timeout, wait_all_ranks=wait_all_ranks)

    @property
    def _group(self) -> Any:
        group = self._find_group()
        if group is None:
            raise ConfigError("the process group of this backend is destroyed")
        return group


def _forward(name: str) -> Callable[..., Any]:
    def method(self: DeviceBackend, *args: Any, **named: Any) -> Any:
        call = getattr(self._group, name)
        if profiler._is_profiler_enabled and name in OPERATIONS:
            return record(call, *args, has_operator=True, **named)
        return call(*args, **named)

    method.__name__ = name
    return method


for _name in _FORWARDED:
    setattr(DeviceBackend, _name, _forward(_name))
dynamo.skip_compilation(DeviceBackend)


def can_subclass() -> bool:
    """Return whether this torch lets a Python class be a backend."""
    try:
        DeviceBackend(0, 1, lambda: None)
    except TypeError:
        return False
    return True


def register_devices(group: ProcessGroup, devices: Iterable[torch.device]) -> None:
    """Register ``group`` as the backend of ``devices`` with torch's C++ part of it.

    torch's part holds the backend. The backend holds the group weakly: a cycle through
    C++ would never be collected.
    """
    kind = ProcessGroup.BackendType.CUSTOM
    backend = None
    if can_subclass():
        backend = DeviceBackend(group.rank(), group.size(), weakref.ref(group))
    for device in devices:
        group._register_backend(device, kind, backend)
    group._set_default_backend(kind)
