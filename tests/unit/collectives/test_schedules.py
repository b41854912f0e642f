"""Every schedule is verified for every size, and the checker finds wrong ones."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import Union

import pytest

from ringleader.collectives import (
    algorithm,
    direct,
    hierarchy,
    recursive_doubling,
    ring,
    star,
    tree,
)
from ringleader.collectives.schedule import Kind, Move, Program, copy, send, split
from ringleader.collectives.schedule_checker import (
    CHECKS,
    ScheduleError,
    check_all_gather,
    check_all_reduce,
    check_reduce_scatter,
)
from ringleader.errors import ConfigError

SIZES = range(1, 18)

PAIRS = [
    (operation, name)
    for operation in algorithm.OPERATIONS
    for name in algorithm.algorithms(operation)
]


def programs_of(
    operation: str, name: str, size: int, *, root: int = 0, arity: int = 2
) -> list[Program]:
    return [
        algorithm.program(operation, name, rank, size, root=root, arity=arity)
        for rank in range(size)
    ]


def prove(operation: str, programs: list[Program], root: int) -> None:
    rooted = (root,) if operation in algorithm.ROOTED else ()
    CHECKS[operation](programs, *rooted)


@pytest.mark.parametrize(("operation", "name"), PAIRS)
def test_every_schedule_is_proven_for_every_size_and_root(
    operation: str, name: str
) -> None:
    for size in SIZES:
        for root in range(size if operation in algorithm.ROOTED else 1):
            prove(operation, programs_of(operation, name, size, root=root), root)


@pytest.mark.parametrize("arity", [3, 4, 7, 100])
@pytest.mark.parametrize(
    "operation", [operation for operation, name in PAIRS if name == "tree"]
)
def test_trees_of_any_arity_are_proven(operation: str, arity: int) -> None:
    for size in SIZES:
        root = size // 2
        programs = programs_of(operation, "tree", size, root=root, arity=arity)
        prove(operation, programs, root)


@pytest.mark.parametrize(("operation", "name"), PAIRS)
def test_a_rank_alone_has_nothing_to_move(operation: str, name: str) -> None:
    assert algorithm.program(operation, name, 0, 1) == []


# Wrong schedules that the checker must refuse.


def wrong_ring(rank: int, size: int) -> Program:
    """A wrong ring: the gather half uses the indices of the reduce half."""
    right, left = (rank + 1) % size, (rank - 1) % size
    moves = ring.reduce_scatter(rank, size)
    for i in range(1, size):
        moves += send(right, (rank - i) % size), copy(left, (rank - i - 1) % size)
    return moves


@pytest.mark.parametrize("size", range(2, 18))
def test_the_wrong_gather_indices_of_the_seed_are_caught(size: int) -> None:
    with pytest.raises(ScheduleError, match="should hold"):
        check_all_reduce([wrong_ring(rank, size) for rank in range(size)])


@pytest.mark.parametrize("arity", [0, 1, -1])
def test_a_tree_without_branches_is_refused(arity: int) -> None:
    with pytest.raises(ConfigError, match="arity must be >= 2"):
        algorithm.program("all_reduce", "tree", 0, 4, arity=arity)


@pytest.mark.parametrize(("root", "size"), [(4, 4), (-1, 4), (0, 0)])
def test_a_root_that_is_no_rank_is_refused(root: int, size: int) -> None:
    with pytest.raises(ConfigError, match="is not one of the ranks"):
        algorithm.program("reduce", "tree", 0, size, root=root)


def test_an_unknown_algorithm_is_refused_and_the_known_ones_are_named() -> None:
    with pytest.raises(ConfigError, match="choose one of: star, tree"):
        algorithm.program("gather", "ring", 0, 4)


def compositions(total: int) -> Iterator[list[int]]:
    """Return all ordered sums of ``total``: all splits of ranks into hosts."""
    if total == 0:
        yield []
    for first in range(1, total + 1):
        yield from ([first, *rest] for rest in compositions(total - first))


def hosts_of(sizes: list[int]) -> list[list[int]]:
    """Distribute ranks round-robin, so that a host's ranks are not adjacent."""
    hosts: list[list[int]] = [[] for _ in sizes]
    rank = 0
    while any(len(h) < s for h, s in zip(hosts, sizes, strict=True)):
        for host, size in zip(hosts, sizes, strict=True):
            if len(host) < size:
                host.append(rank)
                rank += 1
    return hosts


ACROSS: dict[str, Callable[[int, int], Program]] = {
    "direct": direct.all_reduce,
    "ring": ring.all_reduce,
    "halving": recursive_doubling.halving_all_reduce,
    "tree": tree.all_reduce,
    "star": star.all_reduce,
}


@pytest.mark.parametrize("across", ACROSS)
def test_unequal_hosts_count_every_rank_once(across: str) -> None:
    """Hosts of unequal size: the mean over hosts is not the mean over ranks."""
    for total in range(1, 8):
        for sizes in compositions(total):
            hosts = hosts_of(sizes)
            programs = [
                hierarchy.all_reduce(
                    rank,
                    hosts,
                    local_reduce=tree.reduce_to,
                    across=ACROSS[across],
                    local_broadcast=recursive_doubling.broadcast,
                )
                for rank in range(total)
            ]
            check_all_reduce(programs)


def test_hosts_reduce_first_what_leaves_first_and_broadcast_what_is_complete() -> None:
    """In the order of the chunks, the wire waits 20 ms of 560 for 64 MiB."""
    hosts = [[0, 1], [2, 3]]
    for number, (local_root, member) in enumerate(hosts):
        root, leaf = (
            hierarchy.all_reduce(
                rank,
                hosts,
                local_reduce=star.reduce_to,
                across=ring.all_reduce,
                local_broadcast=star.broadcast,
            )
            for rank in (local_root, member)
        )
        leaving = [m.chunk for m in root if m.kind is Kind.SEND and m.peer != member]
        assert [m.chunk for m in leaf if m.kind is Kind.SEND] == leaving
        # The chunk that this host completes is sent last, and is complete first.
        completed, other = leaving[-1], leaving[0]
        assert [m.chunk for m in leaf if m.kind is Kind.COPY] == [completed, other]
        assert completed == number


def test_hierarchies_gather_and_scatter_every_chunk_and_return_none() -> None:
    for total in range(1, 8):
        for sizes in compositions(total):
            hosts = hosts_of(sizes)
            gathers = [hierarchy.all_gather(rank, hosts) for rank in range(total)]
            check_all_gather(gathers)
            scatters = [hierarchy.reduce_scatter(rank, hosts) for rank in range(total)]
            check_reduce_scatter(scatters)
            for number, host in enumerate(hosts):
                others = total - len(host)
                if others:
                    assert num_arriving(gathers, host) == others
                    left = hosts[number - 1]
                    assert num_arriving(scatters, host) == total - len(left)


def num_arriving(programs: list[Program], host: list[int]) -> int:
    """Chunks that other hosts send to ``host``."""
    return sum(
        move.kind is Kind.SEND and move.peer in host and rank not in host
        for rank, program in enumerate(programs)
        for move in program
    )


def mutants(programs: list[Program]) -> Iterator[list[Program]]:
    """Yield programs with one move dropped, or one receive of the wrong kind."""
    flip = {Kind.REDUCE: Kind.COPY, Kind.COPY: Kind.REDUCE}
    for rank, moves in enumerate(programs):
        for index, move in enumerate(moves):
            changes: list[Program] = [[]]
            if move.kind is not Kind.SEND:
                changes.append([Move(flip[move.kind], move.peer, move.chunk)])
            for change in changes:
                wrong = [*moves[:index], *change, *moves[index + 1 :]]
                yield [*programs[:rank], wrong, *programs[rank + 1 :]]


@pytest.mark.parametrize("name", algorithm.algorithms("all_reduce"))
def test_every_dropped_or_confused_move_is_caught(name: str) -> None:
    for wrong in mutants(programs_of("all_reduce", name, 5)):
        with pytest.raises(ScheduleError):
            check_all_reduce(wrong)


def test_ranks_that_wait_for_each_other_are_caught() -> None:
    with pytest.raises(ScheduleError, match="deadlock"):
        check_all_reduce([[copy(1, 0), send(1, 0)], [copy(0, 0), send(0, 0)]])


Sum = Union[int, frozenset["Sum"]]  # noqa: UP007 (a string is no operand of |)
"""An expression: ranks in order of addition; a + b and b + a are the same bits."""


def sums_of(programs: list[Program]) -> list[dict[int, Sum]]:
    """Return the expression that an all_reduce computes, per rank and chunk."""
    chunks = {move.chunk for moves in programs for move in moves}
    held: list[dict[int, Sum]] = [
        dict.fromkeys(chunks, r) for r in range(len(programs))
    ]
    wires: dict[tuple[int, int], deque[Sum]] = {}
    waiting = deque((rank, deque(moves)) for rank, moves in enumerate(programs))
    while waiting:
        rank, moves = waiting.popleft()
        while moves:
            kind, peer, chunk = moves[0]
            if kind is Kind.SEND:
                wires.setdefault((rank, peer), deque()).append(held[rank][chunk])
            elif not wires.get((peer, rank)):
                waiting.append((rank, moves))
                break
            else:
                value = wires[peer, rank].popleft()
                both = frozenset({held[rank][chunk], value})
                held[rank][chunk] = both if kind is Kind.REDUCE else value
            moves.popleft()
    return held


# An exchange leaves the order to its engine, which adds in rank order: the bits are
# compared in tests/integration/groups/test_values.py.
@pytest.mark.parametrize(
    "name", [n for n in algorithm.algorithms("all_reduce") if n != "exchange"]
)
def test_all_ranks_compute_the_same_bits(name: str) -> None:
    for size in range(2, 10):
        first, *others = sums_of(programs_of("all_reduce", name, size))
        assert all(other == first for other in others)


@pytest.mark.parametrize(("count", "parts"), [(0, 3), (2, 3), (17, 5), (100, 1)])
def test_a_split_covers_everything_in_nearly_equal_parts(
    count: int, parts: int
) -> None:
    runs = split(count, parts)
    assert [i for start, end in runs for i in range(start, end)] == list(range(count))
    assert len(runs) == parts
    lengths = {end - start for start, end in runs}
    assert max(lengths) - min(lengths) <= 1
