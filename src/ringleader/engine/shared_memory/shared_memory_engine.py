"""The engine for groups whose ranks all share memory."""

from __future__ import annotations

from collections.abc import Callable

from ringleader.engine import gil_interval
from ringleader.engine.arrays import storage_dtype
from ringleader.engine.arrays_by_address import Addresses, ChunksByAddress
from ringleader.engine.call import Call, present
from ringleader.engine.engine import Forms, NextHeader, Prepared, Runs
from ringleader.engine.shared_memory import prepared_collectives, slot_collectives
from ringleader.engine.shared_memory.arena import Arena
from ringleader.engine.shared_memory.helpers import HELPED_BYTES, Helpers, helped_call
from ringleader.engine.shared_memory.helpers import copy as helped_copy
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
        self._one_shot_bytes = min(ONE_SHOT_BYTES, arena.geometry.exchange_bytes)

    def is_relayed(self, num_bytes: int) -> bool:
        """Whether an all_reduce of ``num_bytes`` is a relay; equal on all ranks."""
        return num_bytes > self._one_shot_bytes

    def use_helpers(self, helpers: Helpers) -> None:
        """Share large copies and additions among threads; all ranks must, at once."""
        self._helpers = helpers
        self.arena.copy = helped_copy

    @property
    def has_helpers(self) -> bool:
        """Whether threads share large copies and additions."""
        return self._helpers is not None

    def run(self, call: Call, header: bytes) -> None:
        """Large sums by the relay, everything else by its own function."""
        self.arena.complete = 0
        helpers = self._helpers
        if helpers is None or _largest_bytes(call) < HELPED_BYTES:
            self._run(call, header)
        else:
            helpers.run(lambda: self._run(call, header))

    def _run(self, call: Call, header: bytes) -> None:
        if call.operation == "all_reduce" and self.is_relayed(call.num_bytes):
            self._relay_all_reduce(call, header)
        elif call.operation == "reduce_scatter" and self._is_scatter_relayed(call):
            self.relay.reduce_scatter(
                header,
                [present(s) for s in call.inputs],
                present(call.outputs[self.arena.rank]),
                self._helped(call, _longest_bytes(call)) or self._plain(call),
            )
        else:
            RUN[call.operation](self.arena, call, header)

    def _relay_all_reduce(self, call: Call, header: bytes) -> None:
        relay, size = self.relay, self.arena.size
        copier = call.device_copier
        if copier is None:
            how = self._helped(call, call.num_bytes // size) or self._plain(call)
            relay.all_reduce(header, call.input, call.output, how)
        else:
            dtype = storage_dtype(call.dtype)
            how = device_call(call.combine(), call.divide(size), copier)
            relay.all_reduce_device(header, copier, call.count, dtype, how)

    def _plain(self, call: Call) -> RelayCall:
        return plain_call(call.combine(), call.divide(self.arena.size))

    def _is_scatter_relayed(self, call: Call) -> bool:
        return self.arena.size * _longest_bytes(call) > self._one_shot_bytes

    def _helped(self, call: Call, part_bytes: int) -> RelayCall | None:
        """How helpers share a relay with parts of this size; equal on all ranks."""
        if self._helpers is None or part_bytes < HELPED_BYTES:
            return None
        size, num_threads = self.arena.size, self._helpers.num_threads
        room = self.arena.geometry.helped_part_bytes(num_threads)
        return helped_call(call.dtype, call.reduce_op, size, room)

    def prepare(self, call: Call, next_header: NextHeader) -> Forms | None:
        """A call of one slot with all views made, or a relay with its plan kept."""
        if call.operation == "all_reduce" and self.is_relayed(call.num_bytes):
            return Forms(self._prepare_relay(call, next_header))
        if call.operation == "reduce_scatter" and self._is_scatter_relayed(call):
            return None
        forms = prepared_collectives.prepare(self.arena, call, next_header)
        if forms is None or max(call.tensors, default=0) <= HELD_ELEMENTS:
            return forms
        return Forms(gil_interval.shortened(forms.run))

    def _prepare_relay(self, call: Call, next_header: NextHeader) -> Prepared:
        arena, relay = self.arena, self.relay
        dtype = storage_dtype(call.dtype)
        chunks = ChunksByAddress(call.tensors, [call.count], dtype)
        helped = self._helped(call, call.num_bytes // arena.size)
        how, helpers = helped or self._plain(call), self._helpers

        def run(addresses: Addresses) -> None:
            header = next_header()
            (array,) = chunks[addresses]
            arena.complete = 0
            relay.all_reduce(header, array, array, how)

        hurried = gil_interval.shortened(run)
        if helpers is None or helped is None:
            return hurried
        return lambda addresses: helpers.run(lambda: hurried(addresses))

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
