"""The engine for groups whose ranks all share memory."""

from __future__ import annotations

from collections.abc import Callable

from ringleader.engine.arrays import storage_dtype
from ringleader.engine.arrays_by_address import ArraysByAddress
from ringleader.engine.call import Call, present
from ringleader.engine.engine import HeaderMismatch, NextHeader, Prepared, Runs
from ringleader.engine.reductions import add_in_order
from ringleader.engine.shared_memory import slot_collectives
from ringleader.engine.shared_memory.arena import Arena
from ringleader.engine.shared_memory.relay import Relay
from ringleader.transport.shm_segment import Signal

ONE_SHOT_BYTES = 64 << 10
"""Up to this size one exchange beats a relay, with two, three and four ranks; see
docs/decisions/0005-relay.md."""

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
        self._one_shot_bytes = min(ONE_SHOT_BYTES, arena.geometry.exchange_bytes)

    def is_relayed(self, num_bytes: int) -> bool:
        """Whether an all_reduce of ``num_bytes`` is a relay; equal on all ranks."""
        return num_bytes > self._one_shot_bytes

    def run(self, call: Call, header: bytes) -> None:
        """Large sums by the relay, everything else by its own function."""
        self.arena.complete = 0
        if call.operation == "all_reduce" and self.is_relayed(call.num_bytes):
            self._relay_all_reduce(call, header)
        elif call.operation == "reduce_scatter" and self._is_scatter_relayed(call):
            self.relay.reduce_scatter(
                header,
                [present(s) for s in call.inputs],
                present(call.outputs[self.arena.rank]),
                call.combine(),
                call.divide(self.arena.size),
            )
        else:
            RUN[call.operation](self.arena, call, header)

    def _relay_all_reduce(self, call: Call, header: bytes) -> None:
        combine, divide = call.combine(), call.divide(self.arena.size)
        if call.device_copier is None:
            self.relay.all_reduce(header, call.input, call.output, combine, divide)
        else:
            dtype = storage_dtype(call.dtype)
            self.relay.all_reduce_device(
                header, call.device_copier, call.count, dtype, combine, divide
            )

    def _is_scatter_relayed(self, call: Call) -> bool:
        longest_bytes = max(call.lengths) * storage_dtype(call.dtype).itemsize
        return self.arena.size * longest_bytes > self._one_shot_bytes

    def prepare(self, call: Call, next_header: NextHeader) -> Prepared | None:
        """An all_reduce with all views made, or with its relay's plan kept."""
        if self.is_relayed(call.num_bytes):
            return self._prepare_relay(call, next_header)
        return self._prepare_one_shot(call, next_header)

    def _prepare_one_shot(self, call: Call, next_header: NextHeader) -> Prepared:
        arena, num_bytes, dtype = self.arena, call.num_bytes, storage_dtype(call.dtype)
        combine, divide = call.combine(), call.divide(arena.size)
        arrays = ArraysByAddress(call.count, dtype)
        turns = range(arena.geometry.num_exchanges)
        slots = [[s[k] for s in arena.exchanges] for k in turns]
        my_header = [turn[arena.rank].header for turn in slots]
        blocks = [[s.content[:num_bytes].view(dtype) for s in turn] for turn in slots]
        mine = [turn[arena.rank] for turn in blocks]
        posts = arena.post[Signal.POST]
        theirs = [
            (p, arena.take[Signal.POST][p], [turn[p].header for turn in slots])
            for p in arena.peers
        ]
        wait, next_turn = arena.wait, arena.next_turn

        def run(address: int) -> None:
            header = next_header()
            k = next_turn()
            tensor = arrays[address]
            mine[k][...] = tensor
            my_header[k][:] = header
            for post in posts:
                post()
            for peer, take, seen in theirs:
                if not take(False):
                    wait(take, peer)
                if (other := seen[k].tobytes()) != header:
                    raise HeaderMismatch(peer, other, header)
            add_in_order(blocks[k], tensor, combine)
            if divide is not None:
                divide(tensor)

        return run

    def _prepare_relay(self, call: Call, next_header: NextHeader) -> Prepared:
        arena, relay = self.arena, self.relay
        combine, divide = call.combine(), call.divide(arena.size)
        arrays = ArraysByAddress(call.count, storage_dtype(call.dtype))

        def run(address: int) -> None:
            header = next_header()
            array = arrays[address]
            arena.complete = 0
            relay.all_reduce(header, array, array, combine, divide)

        return run

    def progress(self, _call: Call) -> Runs:
        """The beginning of the result, as far as it is complete."""
        return ((0, self.arena.complete),) if self.arena.complete else ()
