"""How one call of a relay copies and adds: by one thread, by several, by a device."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from ringleader.engine.arrays import Array, bytes_of
from ringleader.engine.call import DeviceCopier
from ringleader.engine.reductions import Combine, Divide
from ringleader.engine.shared_memory.relay_plan import Copy


def _copy_bytes(copies: list[Copy]) -> None:
    for target, source in copies:
        target[:] = source


@dataclass(frozen=True, slots=True, kw_only=True)
class RelayCall:
    """The functions of one call; its views are whatever they accept."""

    combine: Callable[..., object]
    """A Combine on what ``values`` returns."""
    divide: Callable[..., object] | None
    """Turns a sum into the result, in place; None if it is the result."""
    copy: Callable[[list[Copy]], None] = _copy_bytes
    """Starts copies, in this order."""
    synchronize: Callable[[], None] | None = None
    """Waits for the copies; None if they have been made when ``copy`` returns."""
    bytes: Callable[[Array], Any] = bytes_of
    """The memory of an array, to be copied."""
    values: Callable[[Array], Any] = lambda array: array
    """The memory of an array, to be added."""
    helped_as: torch.dtype | None = None
    """The dtype of the tensors that helper threads add; None without helpers."""
    part_bytes: int = 0
    """Bytes of a part; 0 for the relay's own."""


def plain_call(
    combine: Combine, divide: Divide | None, part_bytes: int = 0
) -> RelayCall:
    """Return a call that the calling thread does alone."""
    return RelayCall(combine=combine, divide=divide, part_bytes=part_bytes)


def device_call(
    combine: Combine, divide: Divide | None, copier: DeviceCopier
) -> RelayCall:
    """Return a call whose copies a device makes."""
    return RelayCall(
        combine=combine,
        divide=divide,
        copy=copier.copy,
        synchronize=copier.synchronize,
    )
