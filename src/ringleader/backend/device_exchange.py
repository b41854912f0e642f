"""Collectives of ranks whose tensors are on one GPU: in memory that all of them map.

No value passes through host memory. Each rank has two slots of device memory, used in
turn. In a piece, a rank writes to its slot, waits until the device has done so, tells
the others and awaits them, by a small all_gather of the group, and then lets the device
read the slots of all. No event is shared between processes: a rank tells of piece t
when its device has read piece t-1, so who writes piece t+1, into the slot of piece t-1,
has heard that all have read it. Only hosts wait for other ranks, with the deadline and
the errors of the group. A device that waits for an event of a process that was killed
waits for ever.

Whether a call takes this path is agreed in the same all_gather, since a rank may pass a
tensor of the CPU or of another GPU: a row is the call and the device, and the path is
taken if all rows are equal. Otherwise all ranks go on as if it did not exist, and
calls that do not match are found there. Nobody asks about short calls.
docs/decisions/0022 has the measurements.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ringleader import settings
from ringleader.backend import device_memory, device_slots
from ringleader.backend.device import Device, Event
from ringleader.backend.device_call import DIGEST_BYTES, DeviceCall
from ringleader.backend.device_collectives import Collective
from ringleader.backend.device_memory import HOST, ID_BYTES, NO_DEVICE
from ringleader.backend.device_slots import DeviceSlots
from ringleader.groups.group import Group

MIN_BYTES = 1 << 20
"""Calls of at most this pass through host memory. Processes take turns on a GPU, and a
turn costs 150 us, for kernels and for copies inside the device, but not for copies to
and from the host."""
_ROW_BYTES = DIGEST_BYTES + ID_BYTES

_log = logging.getLogger("ringleader")


def is_short(num_bytes: int) -> bool:
    """Return whether a call is too short for this path; equal on all ranks."""
    return num_bytes <= MIN_BYTES


@dataclass(slots=True)
class Question:
    """Whether a call can be done in device memory; all ranks ask it, or none.

    Both methods run as part of an operation of the group.
    """

    exchange: DeviceExchange
    call: DeviceCall
    has_succeeded: bool = False
    """Whether the call was done there."""

    def __call__(self, device: Device, after: Sequence[Event]) -> Event | None:
        """Do the call after these events; return its end, or None if not all agree."""
        end = self.exchange.run(self.call, device, after)
        self.has_succeeded = end is not None
        return end

    def are_on_host(self) -> bool:
        """Tell the others that the tensors of this rank are on the CPU.

        Returns whether those of all ranks are, in the same call.
        """
        return self.exchange.agree(self.call, HOST)


class DeviceExchange:
    """The path through device memory, of one rank of a group."""

    def __init__(self, group: Group) -> None:
        self._group = group
        self._slots: DeviceSlots | None = None
        """None until the first call on which all ranks agree."""
        self._device_id = NO_DEVICE
        self._most_bytes = device_slots.MAX_SLOT_BYTES
        """Larger slots are not to be had; equal on all ranks."""
        self._last: Event | None = None
        self._may_leave = settings.stages_on_host()
        self._off_reason = ""
        """Why the path is never taken any more; equal on all ranks."""
        self._row = bytearray(_ROW_BYTES)
        self._rows = bytearray(_ROW_BYTES * group.size)
        self._given = torch.frombuffer(self._row, dtype=torch.uint8)
        self._found = torch.frombuffer(self._rows, dtype=torch.uint8)

    def leaves(self, num_bytes: int) -> bool:
        """Return whether a call is left to host memory, where it is faster if short."""
        return is_short(num_bytes) and self._may_leave

    @property
    def is_on(self) -> bool:
        """Whether calls may take this path; equal on all ranks."""
        return not self._off_reason

    @property
    def is_open(self) -> bool:
        """Whether the ranks share memory of a device."""
        return self._slots is not None

    def question(
        self, opts: Any, ins: Sequence[Tensor], outs: Sequence[Tensor]
    ) -> Question | None:
        """Return what to ask before a call with these options; None on all ranks if
        the host does it anyway.
        """
        call = DeviceCall(opts, self._group.rank, ins, outs)
        if not call.name or self.leaves(call.num_bytes):
            return None
        return Question(self, call)

    def run(
        self, call: DeviceCall, device: Device, after: Sequence[Event]
    ) -> Event | None:
        """Do ``call`` after these events; the current device is that of its tensors."""
        where = call.device()
        own_id = device_memory.device_id(where)
        if self._off_reason or own_id == NO_DEVICE:
            self.agree(call, own_id)
            return None
        with device.d2h_stream():
            self._wait_for(after, device)
            work = None
            if own_id == self._device_id and self._has_room(call):
                work = self._start(call, device)
            if not self.agree(call, own_id):
                return None
            if work is None:
                if not self._open(device, where, call.wanted_bytes):
                    return None
                work = self._start(call, device)
                self.agree(call, own_id)
            self._collect(work, 0)
            for piece in range(1, work.num_pieces):
                self._publish(work, piece, device)
                self.agree(call, own_id)
                self._collect(work, piece)
            call.finish()
            self._last = device.record_event()
        return self._last

    def _has_room(self, call: DeviceCall) -> bool:
        """Return whether slots are as large as the call wants; equal on all ranks."""
        assert self._slots is not None
        return self._slots.slot_bytes >= min(call.wanted_bytes, self._most_bytes)

    def _start(self, call: DeviceCall, device: Device) -> Collective:
        """Write the first piece of a call to our slot."""
        assert self._slots is not None
        work = call.start(device, self._slots.slot_bytes)
        self._publish(work, 0, device)
        return work

    def _wait_for(self, events: Sequence[Event], device: Device) -> None:
        """Let the current stream wait for events of other streams."""
        for event in events:
            if event is not self._last:
                device.wait_event(event)

    def _publish(self, work: Collective, piece: int, device: Device) -> None:
        """Write a piece to our slot; the device has done it when this returns."""
        assert self._slots is not None
        work.publish(piece, self._slots.current()[self._group.rank])
        device.record_event().synchronize()

    def _collect(self, work: Collective, piece: int) -> None:
        assert self._slots is not None
        work.collect(piece, self._slots.current())
        self._slots.advance()

    def agree(self, call: DeviceCall, own_id: bytes) -> bool:
        """Tell this rank's call and device; return whether all ranks have the same.

        Tensors on unlike devices turn the path off: later calls would ask in vain.
        """
        if self._off_reason:
            return False
        self._row[:] = call.digest() + own_id
        self._group.all_gather(self._found, self._given)
        if self._rows == self._row * self._group.size:
            return True
        starts = range(DIGEST_BYTES, len(self._rows), _ROW_BYTES)
        ids = {bytes(self._rows[at : at + ID_BYTES]) for at in starts}
        if len(ids) > 1 and ids.isdisjoint((NO_DEVICE, HOST)):
            self._turn_off("the ranks have their tensors on several GPUs")
        return False

    def _open(self, device: Device, where: torch.device, wanted_bytes: int) -> bool:
        """Share memory of the device, or more of it; return whether all ranks can."""
        device_id, before = device_memory.device_id(where), self._slots
        if before is not None and device_id != self._device_id:
            self._turn_off("a group shares the memory of one GPU only")
            return False
        room = device_slots.choose_slot_bytes(self._group, where, wanted_bytes)
        slots, reason = before, ""
        if before is None or room > before.slot_bytes:
            with torch.inference_mode(False):  # its memory could be used only there
                slots, reason = DeviceSlots.open(self._group, device, where, room)
        if slots is None and before is None:
            device_memory.refuse(where)  # what was granted in vain is not freed
            self._turn_off(reason)
            return False
        if self._last is not None:
            self._last.synchronize()  # it has read the slots of before
        self._slots, self._device_id = slots or before, device_id
        assert self._slots is not None
        if self._slots.slot_bytes < wanted_bytes:
            self._most_bytes = self._slots.slot_bytes
            why = reason or "more would take too much of the free memory"
            _log.info("cuda: slots stay at %d bytes: %s", self._most_bytes, why)
        return True

    def _turn_off(self, reason: str) -> None:
        self._off_reason = reason
        _log.info("cuda: tensors pass through host memory: %s", reason)

    def close(self) -> None:
        """Drop all memory. Call it when the group has ended."""
        if self._last is not None:
            self._last.synchronize()
        self._off_reason = self._off_reason or "the group has ended"
        self._slots = self._last = None
