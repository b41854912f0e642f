"""No place of a relay is used by two ranks at once: proved from the signals alone.

Turns are laid out by the real thing, for every rank; then we walk through them with a
clock per rank. A rank knows of another what it had done when it last told. Of two that
use a place, one writing it, one must know of the other: however slow anybody is.
"""

from __future__ import annotations

import mmap
import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest

from ringleader.engine.arrays import Array
from ringleader.engine.shared_memory.arena import Arena
from ringleader.engine.shared_memory.relay import Relay
from ringleader.engine.shared_memory.relay_call import plain_call
from ringleader.engine.shared_memory.relay_plan import Turn
from ringleader.transport import shm_segment
from ringleader.transport.shm_segment import Geometry, Segment, Signal

PAGE_ITEMS = shm_segment.PAGE // 8


@dataclass(frozen=True)
class Use:
    """One rank uses one place once."""

    rank: int
    moment: int
    knows: tuple[int, ...]
    """Up to which moment of each rank all is done, as far as this one knows."""
    writes: bool

    def is_after(self, other: Use) -> bool:
        return self.knows[other.rank] > other.moment


class Recorded(Relay):
    """A relay that keeps its turns instead of doing them."""

    def __init__(self, arena: Arena, segments: list[Segment]) -> None:
        super().__init__(arena, segments)
        self.calls: list[list[Turn]] = []

    def _run(self, walk: Iterable[Turn], *_: object) -> None:
        turns = list(walk)
        assert [turn.is_last for turn in turns] == [False] * (len(turns) - 1) + [True]
        self.calls.append(turns)


@dataclass
class Clocks:
    """What every rank knows of every other."""

    size: int
    knows: list[list[int]] = field(init=False)
    told: list[list[int]] = field(init=False)
    uses: dict[int, list[Use]] = field(default_factory=dict)
    """By the address of the place."""

    def __post_init__(self) -> None:
        self.knows = [[0] * self.size for _ in range(self.size)]
        self.told = [[0] * self.size for _ in range(self.size)]

    def use(
        self,
        rank: int,
        places: Sequence[memoryview | Array],
        *,
        writes: bool,
        for_turns: int = 0,
    ) -> None:
        """Use places, until the end of a later turn if it takes so many more."""
        knows = tuple(self.knows[rank])
        for place in places:
            if len(place):
                at = np.frombuffer(place, np.uint8).ctypes.data
                use = Use(rank, knows[rank] + for_turns, knows, writes)
                self.uses.setdefault(at, []).append(use)

    def hear(self, rank: int, peers: Iterable[int]) -> None:
        for peer in peers:
            pairs = zip(self.knows[rank], self.told[peer], strict=True)
            self.knows[rank] = [max(a, b) for a, b in pairs]

    def end(self, rank: int) -> None:
        self.knows[rank][rank] += 1


def relays(size: int) -> list[Recorded]:
    geometry = Geometry(size)
    memory = [mmap.mmap(-1, geometry.total_bytes) for _ in range(size)]
    segments = [Segment(m) for m in memory]
    made = []
    for rank in range(size):
        peers = [p for p in range(size) if p != rank]
        nothing: dict[int, object] = dict.fromkeys(peers)
        arena = SimpleNamespace(
            rank=rank,
            size=size,
            peers=peers,
            geometry=geometry,
            take=[nothing for _ in Signal],
        )
        made.append(Recorded(cast(Arena, arena), segments))
    return made


def call_all(ranks: list[Recorded], dice: random.Random) -> Iterator[Array]:
    """The same calls on every rank; their memory, which has to stay."""
    size = len(ranks)
    for _ in range(40):
        count = dice.randrange(1, (2 * size + 3) * size * PAGE_ITEMS)
        is_scatter = dice.random() < 0.4
        for each in ranks:
            source, out = np.zeros(count), np.zeros(count)
            yield source
            yield out
            if not is_scatter:
                each.all_reduce(b"", source, out, plain_call(np.add, None))
                continue
            step = -(-count // size)
            parts = [source[i * step : (i + 1) * step] for i in range(size)]
            mine = out[: len(parts[each._arena.rank])]
            each.reduce_scatter(b"", parts, mine, plain_call(np.add, None))


def walk_through(ranks: list[Recorded], *, on_devices: bool) -> Clocks:
    clocks = Clocks(len(ranks))
    for calls in zip(*(each.calls for each in ranks), strict=True):
        num_turns = len(calls[0])
        for t in range(num_turns):
            for rank, turns in enumerate(calls):
                waits = not on_devices or bool(turns[t].copies_in)
                late = 0 if waits else num_turns - 1 - t
                one_turn(clocks, rank, turns[t], late, is_first=t == 0)
            if t < num_turns - 1:
                clocks.told = [list(known) for known in clocks.knows]
    return clocks


def one_turn(
    clocks: Clocks, rank: int, turn: Turn, late: int, *, is_first: bool
) -> None:
    """``late``: the turns after which a device has taken and copied out, at the worst:
    the rank waits for it at the end of the call.
    """
    clocks.use(rank, [place for place, _ in turn.copies_in], writes=True)
    if not is_first:
        clocks.hear(rank, [(rank - 1) % clocks.size])
    clocks.use(rank, [place for _, place in turn.adds], writes=True)
    for _, place, total in turn.sums:
        clocks.use(rank, [place], writes=total is place)
    takes = [place for _, place in turn.takes]
    clocks.use(rank, takes, writes=False, for_turns=late)
    if not is_first:
        clocks.hear(rank, range(clocks.size))
    copies_out = [place for _, place in turn.copies_out]
    clocks.use(rank, copies_out, writes=False, for_turns=late)
    clocks.end(rank)


def unordered(size: int, *, on_devices: bool = False) -> list[tuple[Use, Use]]:
    """Pairs of uses of one place of which neither rank knows of the other."""
    ranks = relays(size)
    kept = list(call_all(ranks, random.Random(size)))
    clocks = walk_through(ranks, on_devices=on_devices)
    assert len(clocks.uses) == size * Geometry(size).num_relay_slots, (
        "some are never used"
    )
    del kept
    return [
        (one, other)
        for uses in clocks.uses.values()
        for i, one in enumerate(uses)
        for other in uses[i + 1 :]
        if one.rank != other.rank and (one.writes or other.writes)
        if not (other.is_after(one) or one.is_after(other))
    ]


@pytest.mark.parametrize("on_devices", [False, True])
@pytest.mark.parametrize("size", [2, 3, 4, pytest.param(8, marks=pytest.mark.slow)])
def test_whoever_uses_a_place_knows_that_the_others_are_done(
    size: int, on_devices: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shm_segment, "RELAY_BYTES", 1)  # parts of one page: many pieces
    assert unordered(size, on_devices=on_devices) == []


@pytest.mark.parametrize("size", [2, 3, 4])
def test_with_one_place_less_some_rank_would_not_know(
    size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shm_segment, "RELAY_BYTES", 1)
    fewer = Geometry(size).num_relay_slots - 1
    monkeypatch.setattr(Geometry, "num_relay_slots", fewer)
    assert unordered(size)
