"""Hierarchical collectives: one algorithm inside each host, another across hosts.

Each host has one local root that communicates with other hosts, so every byte leaves a
host once. Contributions are counted per rank, so hosts of unequal size have the right
weight. The parts overlap: a chunk that is reduced inside a host travels on while the
next one is still being reduced.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ringleader.collectives import ring
from ringleader.collectives.schedule import Kind, Move, Program, copy, reduce, send

Rooted = Callable[[int, int, int], Program]
"""(rank, size, root) -> program on one chunk."""
Hosts = Sequence[Sequence[int]]
"""The ranks of each host; the first one is its local root."""


def with_local_root(hosts: Hosts, root: int) -> list[list[int]]:
    """Return ``hosts`` with ``root`` as the local root of its host."""
    return [
        [root, *(r for r in host if r != root)] if root in host else list(host)
        for host in hosts
    ]


def _translate(program: Program, ranks: Sequence[int], chunk: int) -> Program:
    """Return ``program`` in the ranks of the whole group, on one given chunk."""
    return [Move(m.kind, ranks[m.peer], chunk) for m in program]


def all_reduce(
    rank: int,
    hosts: Hosts,
    *,
    local_reduce: Rooted,
    across: Callable[[int, int], Program],
    local_broadcast: Rooted,
) -> Program:
    """Reduce inside each host, all_reduce among the local roots, broadcast inside.

    A host reduces the chunks in the order in which its local root sends or adds them,
    and broadcasts them in the order in which they are complete: links are ordered, so
    in another order the wire would wait for chunks behind those it does not need yet.
    """
    host = next(h for h in hosts if rank in h)
    me = host.index(rank)
    local_roots = [h[0] for h in hosts]
    outside = across(hosts.index(host), len(hosts))
    departures = list(dict.fromkeys(m.chunk for m in outside)) or [0]
    arrivals = {m.chunk: i for i, m in enumerate(outside) if m.kind is not Kind.SEND}
    to_root = local_reduce(me, len(host), 0)
    from_root = local_broadcast(me, len(host), 0)
    moves: Program = []
    for chunk in departures:
        moves += _translate(to_root, host, chunk)
    if me == 0:
        moves += (Move(m.kind, local_roots[m.peer], m.chunk) for m in outside)
    for chunk in sorted(departures, key=lambda c: arrivals.get(c, -1)):
        moves += _translate(from_root, host, chunk)
    return moves


def all_gather(rank: int, hosts: Hosts) -> Program:
    """Gather on the local roots, send hosts' chunks around a ring, pass them on inside.

    Flat algorithms send the chunks of a host back to it; here they never return.
    """
    number, host = _find(rank, hosts)
    around = [hosts[(number - i) % len(hosts)] for i in range(len(hosts))]
    arrivals = [chunk for each in around for chunk in each]
    if rank != host[0]:
        inside = [copy(host[0], chunk) for chunk in arrivals if chunk != rank]
        return [send(host[0], rank), *inside]
    moves = [copy(peer, peer) for peer in host[1:]]
    moves += _among_local_roots(ring.all_gather(number, len(hosts)), hosts)
    moves += (
        send(peer, chunk) for chunk in arrivals for peer in host[1:] if peer != chunk
    )
    return moves


def reduce_scatter(rank: int, hosts: Hosts) -> Program:
    """Reduce on the local roots, then around their ring; hand out the results inside.

    The chunks that leave first are reduced first.
    """
    number, host = _find(rank, hosts)
    around = [hosts[(number - i) % len(hosts)] for i in range(1, len(hosts) + 1)]
    departures = [chunk for each in around for chunk in each]
    if rank != host[0]:
        return [*(send(host[0], chunk) for chunk in departures), copy(host[0], rank)]
    moves = [reduce(peer, chunk) for chunk in departures for peer in host[1:]]
    moves += _among_local_roots(ring.reduce_scatter(number, len(hosts)), hosts)
    moves += (send(peer, peer) for peer in host[1:])
    return moves


def _find(rank: int, hosts: Hosts) -> tuple[int, Sequence[int]]:
    """Return the number of the host of ``rank``, and its ranks."""
    return next((i, host) for i, host in enumerate(hosts) if rank in host)


def _among_local_roots(program: Program, hosts: Hosts) -> Program:
    """Return ``program``, whose chunk i is host i, with the chunks of its ranks."""
    return [
        Move(move.kind, hosts[move.peer][0], chunk)
        for move in program
        for chunk in hosts[move.chunk]
    ]


def reduce_to(
    rank: int, hosts: Hosts, root: int, *, local: Rooted, across: Rooted
) -> Program:
    """Reduce inside each host, then among the local roots to the root."""
    hosts = with_local_root(hosts, root)
    inside, outside = _parts(rank, hosts, root, local, across)
    return inside + outside


def broadcast(
    rank: int, hosts: Hosts, root: int, *, local: Rooted, across: Rooted
) -> Program:
    """Broadcast from the root to the local roots, then inside each host."""
    hosts = with_local_root(hosts, root)
    inside, outside = _parts(rank, hosts, root, local, across)
    return outside + inside


def _parts(
    rank: int, hosts: Hosts, root: int, local: Rooted, across: Rooted
) -> tuple[Program, Program]:
    """Return (moves inside the host, moves among the local roots) of ``rank``."""
    number = next(i for i, h in enumerate(hosts) if rank in h)
    host = hosts[number]
    me = host.index(rank)
    inside = _translate(local(me, len(host), 0), host, 0)
    if me != 0:
        return inside, []
    local_roots = [h[0] for h in hosts]
    home = local_roots.index(root)
    return inside, _translate(across(number, len(hosts), home), local_roots, 0)
