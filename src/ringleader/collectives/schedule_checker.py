"""Verifies schedules by running all ranks symbolically.

The state of a chunk on a rank is the multiset of ranks whose data it contains. Sends
never block, as in the engine, so a schedule that deadlocks here is wrong.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable

from ringleader.collectives.schedule import Kind, Move, Program

Held = dict[tuple[int, int], Counter[int]]
"""(rank, chunk) -> how often it contains the data of each rank."""


class ScheduleError(AssertionError):
    """The schedule is wrong at the place that the text names."""


def execute(programs: list[Program], held: Held) -> Held:
    """Run all programs from the state ``held``; return the final state."""
    held = {place: Counter(c) for place, c in held.items()}
    wires: dict[tuple[int, int], deque[tuple[int, Counter[int]]]] = {}
    at = [0] * len(programs)
    while any(at[r] < len(p) for r, p in enumerate(programs)):
        before = sum(at)
        for rank, program in enumerate(programs):
            while at[rank] < len(program) and _step(
                rank, program[at[rank]], held, wires
            ):
                at[rank] += 1
        if sum(at) == before:
            stuck = {r: p[at[r]] for r, p in enumerate(programs) if at[r] < len(p)}
            raise ScheduleError(f"deadlock: {stuck}")
    left = {pair: len(q) for pair, q in wires.items() if q}
    if left:
        raise ScheduleError(f"sent but never received: {left}")
    return held


def _step(
    rank: int,
    move: Move,
    held: Held,
    wires: dict[tuple[int, int], deque[tuple[int, Counter[int]]]],
) -> bool:
    """Do one move; return False if the chunk it receives has not arrived."""
    here = (rank, move.chunk)
    if move.kind is Kind.SEND:
        if here not in held:
            raise ScheduleError(f"rank {rank} sends chunk {move.chunk}, which it lacks")
        wire = wires.setdefault((rank, move.peer), deque())
        wire.append((move.chunk, Counter(held[here])))
        return True
    wire = wires.setdefault((move.peer, rank), deque())
    if not wire:
        return False
    chunk, content = wire.popleft()
    if chunk != move.chunk:
        raise ScheduleError(f"rank {rank} expects {move}, got chunk {chunk}")
    if move.kind is Kind.REDUCE:
        content = content + held.get(here, Counter())
    held[here] = content
    return True


def _all(size: int) -> Counter[int]:
    return Counter(range(size))


def _expect(held: Held, want: dict[tuple[int, int], Counter[int]]) -> None:
    for place, content in want.items():
        if held.get(place) != content:
            raise ScheduleError(
                f"rank {place[0]} chunk {place[1]}: holds {held.get(place)}, "
                f"should hold {content}"
            )


def _mine(size: int, num_chunks: int) -> Held:
    return {(r, c): Counter([r]) for r in range(size) for c in range(num_chunks)}


def _num_chunks(programs: list[Program]) -> int:
    return 1 + max((m.chunk for p in programs for m in p), default=0)


def check_all_reduce(programs: list[Program]) -> None:
    """Check that every chunk on every rank holds every rank exactly once."""
    size, k = len(programs), _num_chunks(programs)
    held = execute(programs, _mine(size, k))
    _expect(held, {(r, c): _all(size) for r in range(size) for c in range(k)})


def check_reduce(programs: list[Program], root: int) -> None:
    """Check that the root's chunks hold every rank exactly once."""
    size, k = len(programs), _num_chunks(programs)
    held = execute(programs, _mine(size, k))
    _expect(held, {(root, c): _all(size) for c in range(k)})


def check_broadcast(programs: list[Program], root: int) -> None:
    """Check that every rank ends with the root's chunks only."""
    size, k = len(programs), _num_chunks(programs)
    held = execute(programs, {(root, c): Counter([root]) for c in range(k)})
    _expect(held, {(r, c): Counter([root]) for r in range(size) for c in range(k)})


def check_reduce_scatter(programs: list[Program]) -> None:
    """Check that chunk i is complete on rank i."""
    size = len(programs)
    held = execute(programs, _mine(size, size))
    _expect(held, {(r, r): _all(size) for r in range(size)})


def check_all_gather(programs: list[Program]) -> None:
    """Check that chunk i, from rank i, is on every rank."""
    size = len(programs)
    held = execute(programs, {(r, r): Counter([r]) for r in range(size)})
    _expect(held, {(r, c): Counter([c]) for r in range(size) for c in range(size)})


def check_gather(programs: list[Program], root: int) -> None:
    """Check that chunk i, from rank i, is on the root."""
    size = len(programs)
    held = execute(programs, {(r, r): Counter([r]) for r in range(size)})
    _expect(held, {(root, c): Counter([c]) for c in range(size)})


def check_scatter(programs: list[Program], root: int) -> None:
    """Check that chunk i, from the root, is on rank i."""
    size = len(programs)
    held = execute(programs, {(root, c): Counter([root]) for c in range(size)})
    _expect(held, {(r, r): Counter([root]) for r in range(size)})


def check_all_to_all(programs: list[Program]) -> None:
    """Check that chunk i*n + j has gone from rank i to rank j."""
    n = len(programs)
    start = {(i, i * n + j): Counter([i]) for i in range(n) for j in range(n)}
    held = execute(programs, start)
    _expect(held, {(j, i * n + j): Counter([i]) for i in range(n) for j in range(n)})


CHECKS: dict[str, Callable[..., None]] = {
    "all_reduce": check_all_reduce,
    "reduce": check_reduce,
    "broadcast": check_broadcast,
    "reduce_scatter": check_reduce_scatter,
    "all_gather": check_all_gather,
    "gather": check_gather,
    "scatter": check_scatter,
    "all_to_all": check_all_to_all,
}
"""operation -> its check; those of rooted operations take the root, too."""
