"""Staging: collectives on device tensors through host memory, in chunks.

A collective on device tensors becomes one collective per chunk in host memory, all in
one operation of the group. While chunk c travels, chunks c+1 and c+2 are copied to the
host and chunk c-1 is copied to the device. Chunks use the slots of host memory in turn.
The device itself waits until a slot has been copied in before it fills it again, so the
host waits only for data it needs now.

An all_reduce in shared memory is not staged: the device copies to shared memory and
back itself, see device_relay.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from ringleader.backend import host_memory
from ringleader.backend.device import Device, Event
from ringleader.backend.device_relay import DeviceRelay, RelayBuffers
from ringleader.backend.intra_host import Steps
from ringleader.backend.staged_chunk import ALIGN, EDGE, Chunk, cut, key_of
from ringleader.engine.shared_memory.relay import Relay
from ringleader.groups.group import Group, handle_of
from ringleader.groups.tensors import check_writable
from ringleader.groups.work import Work

SLOT_BYTES = 8 << 20
"""Host memory of one chunk, for all tensors of the operation together."""
NUM_SLOTS = 3
AHEAD = NUM_SLOTS - 1
"""Chunks that are copied to the host before they are needed."""

_WHAT = "this operation on tensors of an accelerator"

Body = Callable[[list[Tensor], list[Tensor]], object]
"""Runs the collective on host tensors: (inputs, outputs)."""
Attempt = Callable[[Device, list[Event]], Event | None]
"""Does the operation without host memory, after these events, or returns None."""


class HostStaging:
    """Stages the tensors of one group on one device, one operation at a time."""

    def __init__(self, device: Device) -> None:
        self.device = device
        self._slots: list[Tensor] = []
        self._last: Event | None = None
        """The end of the last operation: its slots are free afterwards."""
        self._relay_buffers: RelayBuffers | None = None

    def run(
        self,
        group: Group,
        ins: Sequence[Tensor],
        outs: Sequence[Tensor],
        body: Body,
        width: int,
        **how: Any,
    ) -> tuple[Work, Callable[[], None]]:
        """Run ``body`` on host copies of the tensors.

        ``ins`` are read and ``outs`` are written; a tensor may be both. ``width`` is
        the number of tensors that share a slot, or 0 to run ``body`` once on the whole
        tensors. It must be equal on all ranks; unless it is 0, so must be the lengths
        of the tensors. Returns the work, and a function that orders the caller's
        stream after it.
        """
        for tensor in outs:
            check_writable(tensor, "a result")
        return self._start(
            group, lambda ready: self._run(ready, ins, outs, body, width), **how
        )

    def all_reduce(
        self, group: Group, relay: Relay, tensor: Tensor, op: str, **how: Any
    ) -> tuple[Work, Callable[[], None]]:
        """Reduce ``tensor`` in place by the group's ``relay``; returns as ``run``."""
        check_writable(tensor, "all_reduce")
        return self._start(
            group, lambda ready: self._relay(ready, group, relay, tensor, op), **how
        )

    def in_layers(
        self, group: Group, steps: Steps, tensors: Sequence[Tensor], **how: Any
    ) -> tuple[Work, Callable[[], None]]:
        """Run ``steps``, whose middle one is staged; returns as ``run``."""
        for tensor in tensors:
            check_writable(tensor, "a result")
        return self._start(
            group,
            lambda ready: self._in_layers(ready, steps, tensors),
            uses_host=steps.crosses_hosts,
            **how,
        )

    def _start(
        self,
        group: Group,
        run: Callable[[Event], Event | None],
        *,
        attempt: Attempt | None = None,
        uses_host: bool = True,
        **how: Any,
    ) -> tuple[Work, Callable[[], None]]:
        """Start ``run``, which gets the event "inputs are ready" and returns "done".

        It returns None if the host has waited for its end. It is not called if
        ``attempt`` succeeds, nor if it ``uses_host`` and the user refuses that. It
        overlaps with the computing of the device, whatever torch's threads on the CPU
        do.
        """
        device = self.device
        if uses_host and attempt is None:
            host_memory.require_allowed(_WHAT)
        done: list[Event | None] = []
        with device.guard():
            ready = device.record_event()

        def job() -> None:
            with device.guard(), torch.no_grad():
                last = [] if self._last is None else [self._last]
                ended = attempt and attempt(device, [ready, *last])
                if uses_host and not ended:
                    host_memory.require_allowed(_WHAT)
                self._last = ended or run(ready)
                done.append(self._last)

        def deliver() -> None:
            if (end := done[0]) is not None:
                with device.guard():
                    device.wait_event(end)

        return handle_of(group).together(job, is_postponed=False, **how), deliver

    def close(self) -> None:
        """Release shared and host memory. Call it when the group has ended."""
        if self._relay_buffers is not None:
            with self.device.guard():
                self._relay_buffers.close()
        self._relay_buffers = None
        self._slots.clear()  # torch may keep its groups forever

    def _relay(
        self, ready: Event, group: Group, relay: Relay, tensor: Tensor, op: str
    ) -> None:
        device = self.device
        if self._relay_buffers is None:
            self._relay_buffers = RelayBuffers.pin(device, relay)
        with device.d2h_stream():
            self._wait_for(ready)
            flat = self._flat(tensor).resolve_conj().resolve_neg()
            copier = DeviceRelay(device, self._relay_buffers, flat.dtype)
            finish: list[Callable[[], object]] = []
            if flat.data_ptr() != tensor.data_ptr():
                finish = [
                    lambda: tensor.detach().copy_(flat.view(tensor.shape)),
                    device.synchronize,
                ]
            reduce = handle_of(group).all_reduce_device
            with copier.using(flat):
                reduce(copier, flat.dtype, len(flat), op, finish)

    def copier(self, dtype: torch.dtype) -> DeviceRelay | None:
        """Return a copier for many calls; None before the first one."""
        buffers = self._relay_buffers
        return None if buffers is None else DeviceRelay(self.device, buffers, dtype)

    @contextmanager
    def in_callers_stream(self) -> Iterator[None]:
        """Let the current stream copy, after all that was started here before.

        A relay in this context has ended when the context does.
        """
        with self.device.callers_stream():
            if self._last is not None:
                self.device.wait_event(self._last)
            yield
        self._last = None

    def _in_layers(
        self, ready: Event, steps: Steps, tensors: Sequence[Tensor]
    ) -> Event:
        device = self.device
        with device.d2h_stream():
            self._wait_for(ready)
            flat = [self._flat(tensor) for tensor in tensors]
            steps.before(flat)
            ready = device.record_event()
        across = steps.across
        if across is not None:
            ready = self._run(
                ready, flat[:1], flat, lambda _, outs: across(outs), len(flat)
            )
        with device.h2d_stream():
            device.wait_event(ready)
            for tensor in (*flat, *tensors):
                device.record_stream(tensor)
            steps.after(flat)
            for tensor, each in zip(tensors, flat, strict=True):
                if each.data_ptr() != tensor.data_ptr():
                    tensor.detach().copy_(each.view(tensor.shape))
            self._last = device.record_event()
        return self._last

    def _wait_for(self, ready: Event) -> None:
        """Let the current stream wait for the inputs and for the operation before."""
        self.device.wait_event(ready)
        if self._last is not None:
            self.device.wait_event(self._last)

    def _run(
        self,
        ready: Event,
        ins: Sequence[Tensor],
        outs: Sequence[Tensor],
        body: Body,
        width: int,
    ) -> Event:
        device = self.device
        with device.d2h_stream():
            self._wait_for(ready)
            flat = {id(t): self._flat(t) for t in (*ins, *outs)}
            ready = device.record_event()
        with device.h2d_stream():
            device.wait_event(ready)
            for tensor in (*flat.values(), *outs):
                device.record_stream(tensor)
        sources, targets = [flat[id(t)] for t in ins], [flat[id(t)] for t in outs]
        self._run_chunks(self._chunks(sources, targets, width), body)
        with device.h2d_stream():
            for tensor in outs:
                target = flat[id(tensor)]
                if target.data_ptr() != tensor.data_ptr():
                    tensor.detach().copy_(target.view(tensor.shape))
            self._last = device.record_event()
        return self._last

    def _flat(self, tensor: Tensor) -> Tensor:
        """Return ``tensor`` contiguous and flat, for use in the current stream."""
        self.device.record_stream(tensor)
        return tensor.detach().contiguous().view(-1)

    def _run_chunks(self, chunks: list[Chunk], body: Body) -> None:
        """Run ``body`` on one chunk after the other."""
        device = self.device
        copied_in: list[Event] = []
        copied_out: list[Event] = []
        for c in range(-AHEAD, len(chunks)):
            ahead = c + AHEAD
            if ahead < len(chunks):
                with device.d2h_stream():
                    if ahead >= NUM_SLOTS:
                        device.wait_event(copied_in[ahead - NUM_SLOTS])
                    chunks[ahead].copy_out()
                    copied_out.append(device.record_event())
            if c >= 0:
                copied_out[c].synchronize()
                body(chunks[c].sent, chunks[c].received)
                with device.h2d_stream():
                    chunks[c].copy_in()
                    copied_in.append(device.record_event())

    def _chunks(
        self, sources: list[Tensor], targets: list[Tensor], width: int
    ) -> list[Chunk]:
        """Cut all tensors alike; into one chunk if their lengths differ."""
        tensors: dict[tuple[int, int], Tensor] = {}
        for tensor in (*sources, *targets):
            tensors.setdefault(key_of(tensor), tensor)
        chunks = []
        for k, run in enumerate(chunk_runs([*sources, *targets], width)):
            hosts = self._hosts(k % NUM_SLOTS, tensors, run)
            chunks.append(Chunk(sources, targets, hosts, run))
        return chunks

    def _hosts(
        self, slot: int, tensors: dict[tuple[int, int], Tensor], run: slice
    ) -> dict[tuple[int, int], Tensor]:
        """Return host memory in ``slot`` for this part of every tensor."""
        sizes = [t[run].nbytes for t in tensors.values()]
        room = sum(-(-size // ALIGN) * ALIGN for size in sizes)
        while len(self._slots) <= slot:
            self._slots.append(self.device.host_buffer(0))
        if self._slots[slot].numel() < room:
            if self._last is not None:
                self._last.synchronize()  # the device may still use the old memory
            self._slots[slot] = self.device.host_buffer(room)
        hosts, at = {}, 0
        for (key, tensor), size in zip(tensors.items(), sizes, strict=True):
            hosts[key] = self._slots[slot][at : at + size].view(tensor.dtype)
            at += -(-size // ALIGN) * ALIGN
        return hosts


def is_one_chunk(num_bytes: int) -> bool:
    """Return whether a tensor that is alone in its slot is one chunk."""
    return num_bytes <= SLOT_BYTES // EDGE


def chunk_runs(tensors: Sequence[Tensor], width: int) -> list[slice]:
    """Return the chunks of an operation; equal on all ranks, whatever the devices."""
    lengths = {t.numel() for t in tensors}
    longest = max(lengths, default=0)
    if not width or len(lengths) != 1:
        return [slice(0, longest)]
    return cut(longest, SLOT_BYTES // width // tensors[0].element_size())
