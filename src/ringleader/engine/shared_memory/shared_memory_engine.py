"""The engine for groups whose ranks all share memory."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ringleader.engine import gil_interval
from ringleader.engine.arrays import Array, storage_dtype
from ringleader.engine.arrays_by_address import Addresses, ChunksByAddress
from ringleader.engine.call import Call, present
from ringleader.engine.engine import Forms, NextHeader, Prepared, Runs
from ringleader.engine.shared_memory import (
    mapped_sum,
    prepared_collectives,
    slot_collectives,
)
from ringleader.engine.shared_memory.arena import Arena
from ringleader.engine.shared_memory.helpers import HELPED_BYTES, Helpers
from ringleader.engine.shared_memory.relay import Relay
from ringleader.engine.shared_memory.relay_call import (
    RelayCall,
    device_call,
    plain_call,
)

ONE_SHOT_BYTES = 64 << 10
"""Up to this size one exchange beats a relay, with two, three and four ranks; see
docs/decisions/0005-relay.md."""

HELD_ELEMENTS = 500
"""numpy keeps the GIL for so many elements: a call without larger tensors gives it to
other threads only while it waits, which the arena knows. Larger ones are not begun in
the caller of an asynchronous call either, who wants to compute meanwhile."""

RUN: dict[str, Callable[[Arena, Call, bytes], None]] = {
    "all_reduce": slot_collectives.all_reduce,
    "reduce_scatter": slot_collectives.reduce_scatter,
    "all_gather": slot_collectives.all_gather,
    "broadcast": slot_collectives.broadcast,
    "reduce": slot_collectives.reduce,
    "gather": slot_collectives.gather,
    "scatter": slot_collectives.scatter,
    "all_to_all": slot_collectives.all_to_all,
    "barrier": slot_collectives.barrier,
}
"""Operation -> the function that runs it without a relay."""


class SharedMemoryEngine:
    """Runs calls in the segments of an arena. One thread at a time."""

    def __init__(self, arena: Arena) -> None:
        self.arena = arena
        self.relay = Relay(arena, arena.segments)
        self._helpers: Helpers | None = None
        self._one_shot_bytes = min(ONE_SHOT_BYTES, arena.geometry.slot_bytes)

    def is_relayed(self, num_bytes: int) -> bool:
        """Whether an all_reduce of ``num_bytes`` is a relay; equal on all ranks."""
        return num_bytes > self._one_shot_bytes

    def use_helpers(self, helpers: Helpers) -> None:
        """Share large copies and additions among threads; all ranks must, at once."""
        self._helpers = helpers
        geometry = self.arena.geometry
        self.arena.copied_bytes = geometry.helped_slot_bytes(helpers.num_threads)

    @property
    def has_helpers(self) -> bool:
        """Whether threads share large copies and additions."""
        return self._helpers is not None

    def run(self, call: Call, header: bytes) -> None:
        """Large sums by the relay, everything else by its own function."""
        self.arena.complete = 0
        helpers = self._helpers
        if (
            helpers is None
            or _largest_bytes(call) < HELPED_BYTES
            or not helpers.are_free()
        ):
            self._run(call, header, is_helped=False)
            return
        self.arena.copy = helpers.copy
        try:
            helpers.run(lambda: self._run(call, header, is_helped=True))
        finally:
            self.arena.copy = np.copyto

    def _run(self, call: Call, header: bytes, *, is_helped: bool) -> None:
        if call.operation == "all_reduce" and self.is_relayed(call.num_bytes):
            self._relay_all_reduce(call, header, is_helped=is_helped)
        elif call.operation == "reduce_scatter" and self._is_scatter_relayed(call):
            plain, helped = self._ways(call, _longest_bytes(call))
            self.relay.reduce_scatter(
                header,
                [present(s) for s in call.inputs],
                present(call.outputs[self.arena.rank]),
                helped if helped is not None and is_helped else plain,
            )
        else:
            RUN[call.operation](self.arena, call, header)

    def _relay_all_reduce(self, call: Call, header: bytes, *, is_helped: bool) -> None:
        relay, size = self.relay, self.arena.size
        copier = call.device_copier
        if copier is None:
            plain, helped = self._ways(call, call.num_bytes // size)
            how = helped if helped is not None and is_helped else plain
            if call.mapped is not None:
                room = max(relay.part_bytes, how.part_bytes)
                mapped_sum.all_reduce(self.arena, header, call.mapped, how, room)
            else:
                relay.all_reduce(header, call.input, call.output, how)
        else:
            dtype = storage_dtype(call.dtype)
            how = device_call(call.combine(), call.divide(size), copier)
            relay.all_reduce_device(header, copier, call.count, dtype, how)

    def _ways(self, call: Call, part_bytes: int) -> tuple[RelayCall, RelayCall | None]:
        """How one thread, and how helpers share, a relay with parts of this size.

        Both have the same parts, so each rank may choose; they are equal on all ranks.
        """
        size, helpers = self.arena.size, self._helpers
        combine, divide = call.combine(), call.divide(size)
        if helpers is not None and part_bytes >= HELPED_BYTES:
            room = self.arena.geometry.helped_part_bytes(helpers.num_threads)
            helped = helpers.relay_call(call.dtype, call.reduce_op, size, room)
            if helped is not None:
                return plain_call(combine, divide, room), helped
        return plain_call(combine, divide), None

    def _is_scatter_relayed(self, call: Call) -> bool:
        return self.arena.size * _longest_bytes(call) > self._one_shot_bytes

    def prepare(self, call: Call, next_header: NextHeader) -> Forms | None:
        """A call of one slot with all views made, or a longer one with its arrays."""
        if call.operation == "all_reduce" and self.is_relayed(call.num_bytes):
            if call.device_copier is not None:
                return Forms(self._prepare_device_relay(call, next_header))
            return Forms(self._prepare_relay(call, next_header))
        forms = None
        if call.operation != "reduce_scatter" or not self._is_scatter_relayed(call):
            forms = prepared_collectives.prepare(self.arena, call, next_header)
        if forms is None and call.operation in ("all_gather", "reduce_scatter"):
            return Forms(self._prepare_long(call, next_header))
        if forms is None or max(call.tensors, default=0) <= HELD_ELEMENTS:
            return forms
        return Forms(gil_interval.shortened(forms.run))

    def _prepare_long(self, call: Call, next_header: NextHeader) -> Prepared:
        """An all_gather or reduce_scatter that needs more than a slot.

        Without it, each call of 12 MiB took 0.14 ms more, of 1.3 (2 ranks, 2 cores).
        """
        me, size = self.arena.rank, self.arena.size
        is_gather = call.operation == "all_gather"
        own = call.lengths[me : me + 1]
        lengths = own + call.lengths if is_gather else call.lengths + own
        chunks = ChunksByAddress(call.tensors, lengths, storage_dtype(call.dtype))
        one: list[Array | None] = [None] * size

        def run(addresses: Addresses) -> None:
            header = next_header()
            arrays = chunks[addresses]
            if is_gather:
                one[me], call.outputs = arrays[0], arrays[1:]
                call.inputs = one
            else:
                call.inputs, one[me] = arrays[:size], arrays[size]
                call.outputs = one
            self.run(call, header)

        return gil_interval.shortened(run)

    def _prepare_relay(self, call: Call, next_header: NextHeader) -> Prepared:
        arena, relay = self.arena, self.relay
        dtype = storage_dtype(call.dtype)
        chunks = ChunksByAddress(call.tensors, [call.count], dtype)
        plain, helped = self._ways(call, call.num_bytes // arena.size)
        helpers = self._helpers

        def run(addresses: Addresses, how: RelayCall = plain) -> None:
            header = next_header()
            (array,) = chunks[addresses]
            arena.complete = 0
            relay.all_reduce(header, array, array, how)

        if helpers is None or helped is None:
            return gil_interval.shortened(run)

        def run_helped(addresses: Addresses) -> None:
            if helpers.are_free():
                helpers.run(lambda: run(addresses, helped))
            else:
                run(addresses)

        return gil_interval.shortened(run_helped)

    def _prepare_device_relay(self, call: Call, next_header: NextHeader) -> Prepared:
        """A relay of the tensor that the copier of ``call`` is using: no addresses."""
        arena, relay, copier = self.arena, self.relay, call.device_copier
        assert copier is not None
        dtype, count = storage_dtype(call.dtype), call.count
        how = device_call(call.combine(), call.divide(arena.size), copier)

        def run(_: Addresses) -> None:
            header = next_header()
            arena.complete = 0
            relay.all_reduce_device(header, copier, count, dtype, how)

        return gil_interval.shortened(run)

    def progress(self, _call: Call) -> Runs:
        """The beginning of the result, as far as it is complete."""
        return ((0, self.arena.complete),) if self.arena.complete else ()


def _longest_bytes(call: Call) -> int:
    """The bytes of the longest chunk."""
    return max(call.lengths) * storage_dtype(call.dtype).itemsize


def _largest_bytes(call: Call) -> int:
    """The bytes of the largest array of this rank; 0 if it has none."""
    arrays = (*call.inputs, *call.outputs)
    return max((array.nbytes for array in arrays if array is not None), default=0)
