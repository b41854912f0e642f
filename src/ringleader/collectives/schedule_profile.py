"""ScheduleProfile: what of a schedule determines its time.

A profile counts moves. The programs of 256 ranks have up to a quarter of a million,
which take seconds to build, so two kinds of algorithms are counted from few of them:
where all ranks do the same up to rotation, the program of rank 0 is enough; and where
all chunks pass one rank on the same ways, one chunk is.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate, repeat

from ringleader.collectives.algorithm import program
from ringleader.collectives.schedule import Kind, Program

ROTATED = {
    "all_reduce": frozenset({"ring", "exchange", "direct", "halving"}),
    "reduce_scatter": frozenset({"ring", "direct", "halving"}),
    "all_gather": frozenset({"ring", "direct", "doubling"}),
    "all_to_all": frozenset({"direct"}),
}
"""Algorithms in which rank r does what rank 0 does, with peers r ranks further."""

HALVES = {
    "all_gather": (("gather", False), ("broadcast", True)),
    "reduce_scatter": (("reduce", True), ("scatter", False)),
}
"""Operations that a tree or star does in two halves with rank 0 as the root; True: the
half is done for every chunk, of which there is one per rank."""


@dataclass(frozen=True, slots=True)
class ScheduleProfile:
    """The quantities that determine a schedule's time; shares are of the tensor."""

    depth: int
    messages: int
    """The most messages that any rank sends and receives."""
    sent: tuple[float, ...]
    received: tuple[float, ...]
    reduced: tuple[float, ...]
    links: dict[tuple[int, int], float]
    fan_in: int
    """The most peers that send to one rank."""
    is_exchange: bool = False
    """Whether the exchange engine runs it: one call to and from every peer."""


@dataclass(frozen=True, slots=True)
class Tally:
    """Moves of a schedule, counted per rank."""

    depth: int
    """The longest chain of dependent messages."""
    num_chunks: int
    messages: list[int]
    reduced: list[int]
    sent: list[Mapping[int, int]]
    """Per rank: peer -> chunks sent to it, in the order of the program."""


@lru_cache(maxsize=1024)
def profile(
    operation: str, algorithm: str, size: int, root: int, arity: int
) -> ScheduleProfile:
    """Return the profile of a named algorithm."""

    def programs(of: str, at: int) -> list[Program]:
        ranks = range(size)
        return [program(of, algorithm, r, size, root=at, arity=arity) for r in ranks]

    if algorithm in ROTATED.get(operation, ()):
        tally = _count_rotated(program(operation, algorithm, 0, size), size)
    elif operation in HALVES and algorithm in ("tree", "star"):
        halves = [(_count(programs(half, 0)), all_) for half, all_ in HALVES[operation]]
        tally = _add_halves([(t, size if is_all else 1) for t, is_all in halves])
    else:
        tally = _count(programs(operation, root))
    return _profile(operation, tally, is_exchange=algorithm == "exchange")


def profile_programs(operation: str, programs: list[Program]) -> ScheduleProfile:
    """Return the profile of any schedule; chunks count as equal shares."""
    return _profile(operation, _count(programs))


def _profile(
    operation: str, tally: Tally, *, is_exchange: bool = False
) -> ScheduleProfile:
    size = len(tally.messages)
    # The tensor of an all_to_all has n parts on each rank, and n * n chunks in all.
    chunks = size if operation == "all_to_all" else tally.num_chunks
    most = max(tally.messages, default=0)
    shares = [0.0, *accumulate(repeat(1 / chunks, most))]
    sent = [sum(peers.values()) for peers in tally.sent]
    received = [n - s for n, s in zip(tally.messages, sent, strict=True)]
    links = {
        (rank, peer): shares[count]
        for rank, peers in enumerate(tally.sent)
        for peer, count in peers.items()
    }
    return ScheduleProfile(
        tally.depth,
        most,
        tuple([shares[n] for n in sent]),
        tuple([shares[n] for n in received]),
        tuple([shares[n] for n in tally.reduced]),
        links,
        max(Counter(to for _, to in links).values(), default=0),
        is_exchange,
    )


def _count(programs: list[Program]) -> Tally:
    return Tally(
        _depth(programs),
        1 + max((move.chunk for moves in programs for move in moves), default=0),
        [len(moves) for moves in programs],
        [sum(move.kind is Kind.REDUCE for move in moves) for moves in programs],
        [_sends(moves) for moves in programs],
    )


def _sends(moves: Program) -> Counter[int]:
    return Counter(move.peer for move in moves if move.kind is Kind.SEND)


def _count_rotated(moves: Program, size: int) -> Tally:
    """Return the tally of a schedule from the program of rank 0."""
    one, ahead = _count([moves]), _sends(moves)
    return Tally(
        _depth_rotated(moves, size),
        one.num_chunks,
        one.messages * size,
        one.reduced * size,
        [{(r + d) % size: n for d, n in ahead.items()} for r in range(size)],
    )


def _add_halves(halves: list[tuple[Tally, int]]) -> Tally:
    """Return the tally of schedules that follow each other, each for so many chunks."""
    ranks = range(len(halves[0][0].messages))
    sent: list[Counter[int]] = [Counter() for _ in ranks]
    for half, times in halves:
        for rank in ranks:
            for peer, count in half.sent[rank].items():
                sent[rank][peer] += count * times
    return Tally(
        sum(half.depth for half, _ in halves),
        len(ranks),
        [sum(half.messages[r] * times for half, times in halves) for r in ranks],
        [sum(half.reduced[r] * times for half, times in halves) for r in ranks],
        [*sent],
    )


def _depth(programs: list[Program]) -> int:
    """Return the length of the longest chain of dependent messages."""
    ready: dict[tuple[int, int], int] = {}
    wires: dict[tuple[int, int], deque[int]] = {}
    at = [0] * len(programs)
    moving = True
    while moving:
        moving = False
        for rank, moves in enumerate(programs):
            while at[rank] < len(moves):
                move = moves[at[rank]]
                here = (rank, move.chunk)
                if move.kind is Kind.SEND:
                    wire = wires.setdefault((rank, move.peer), deque())
                    wire.append(ready.get(here, 0) + 1)
                else:
                    wire = wires.setdefault((move.peer, rank), deque())
                    if not wire:
                        break
                    ready[here] = max(ready.get(here, 0), wire.popleft())
                at[rank] += 1
                moving = True
    return max(ready.values(), default=0)


def _depth_rotated(moves: Program, size: int) -> int:
    """As ``_depth``: what rank 0 gets from behind is what it has sent ahead."""
    ready: dict[int, int] = {}
    wires: dict[int, deque[int]] = {}
    for move in moves:
        before = ready.get(move.chunk, 0)
        if move.kind is Kind.SEND:
            wires.setdefault(move.peer, deque()).append(before + 1)
        else:
            ready[move.chunk] = max(before, wires[-move.peer % size].popleft())
    return max(ready.values(), default=0)
