"""Hierarchy: one algorithm inside each host, another across the hosts.

Each host has one speaker, so every byte leaves a host once. Contributions are counted
per rank, so hosts of unequal size weigh what they should. The parts overlap: a chunk
that has come up inside a host travels on while the next one is still being reduced.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ringleader.collectives.schedule import Move, Program

Rooted = Callable[[int, int, int], Program]
"""(rank, size, root) -> program on one chunk."""
Hosts = Sequence[Sequence[int]]
"""The ranks of each host; the first of a host is its speaker."""


def led_by(hosts: Hosts, root: int) -> list[list[int]]:
    """The same hosts with ``root`` as the speaker of its own."""
    return [
        [root, *(r for r in host if r != root)] if root in host else list(host)
        for host in hosts
    ]


def _translate(program: Program, ranks: Sequence[int], chunk: int) -> Program:
    """The same program in the numbering of the whole group, on one given chunk."""
    return [Move(m.kind, ranks[m.peer], chunk) for m in program]


def all_reduce(
    rank: int,
    hosts: Hosts,
    *,
    local_reduce: Rooted,
    across: Callable[[int, int], Program],
    local_broadcast: Rooted,
) -> Program:
    """Reduce inside, all_reduce among the speakers on chunks of its own, broadcast."""
    host = next(h for h in hosts if rank in h)
    me = host.index(rank)
    speakers = [h[0] for h in hosts]
    num_chunks = 1 + max((m.chunk for m in across(0, len(hosts))), default=0)
    moves: Program = []
    for chunk in range(num_chunks):
        moves += _translate(local_reduce(me, len(host), 0), host, chunk)
    if me == 0:
        mine = across(hosts.index(host), len(hosts))
        moves += (Move(m.kind, speakers[m.peer], m.chunk) for m in mine)
    for chunk in range(num_chunks):
        moves += _translate(local_broadcast(me, len(host), 0), host, chunk)
    return moves


def reduce_to(
    rank: int, hosts: Hosts, root: int, *, local: Rooted, across: Rooted
) -> Program:
    """Reduce inside each host, then among the speakers to the root."""
    hosts = led_by(hosts, root)
    inside, outside = _parts(rank, hosts, root, local, across)
    return inside + outside


def broadcast(
    rank: int, hosts: Hosts, root: int, *, local: Rooted, across: Rooted
) -> Program:
    """From the root to the speakers, then inside each host."""
    hosts = led_by(hosts, root)
    inside, outside = _parts(rank, hosts, root, local, across)
    return outside + inside


def _parts(
    rank: int, hosts: Hosts, root: int, local: Rooted, across: Rooted
) -> tuple[Program, Program]:
    """(moves inside the host, moves among the speakers) of ``rank``."""
    number = next(i for i, h in enumerate(hosts) if rank in h)
    host = hosts[number]
    me = host.index(rank)
    inside = _translate(local(me, len(host), 0), host, 0)
    if me != 0:
        return inside, []
    speakers = [h[0] for h in hosts]
    home = speakers.index(root)
    return inside, _translate(across(number, len(hosts), home), speakers, 0)
