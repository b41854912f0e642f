"""Profiles of an all_reduce for networks with equal links and one rank per host.

``schedule_profile.profile`` lists the links of all ranks: a million if each of 1,024
sends to every other. Where all ranks have the same program up to rotation, those of one
are enough: no rank or link has more to do. Other algorithms have few links.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

from ringleader.collectives.algorithm import program
from ringleader.collectives.schedule import Kind
from ringleader.collectives.schedule_profile import ScheduleProfile, profile

DEPTHS: dict[str, Callable[[int], int]] = {
    "ring": lambda size: 2 * (size - 1),
    "exchange": lambda size: min(1, size - 1),
    "direct": lambda size: min(2, 2 * (size - 1)),
    "halving": lambda size: 2 * (size.bit_length() - 1),
}
"""The longest chain of messages of the algorithms whose ranks all do the same."""


@lru_cache(maxsize=256)
def even_profile(algorithm: str, size: int, arity: int = 2) -> ScheduleProfile:
    """Return a profile with the links of one rank, which stands for all.

    On a network with equal links and one rank per host, ``predict_s`` gives the same
    time as for the profile of all links.
    """
    if algorithm not in DEPTHS:
        return profile("all_reduce", algorithm, size, 0, arity)
    moves = program("all_reduce", algorithm, 0, size)
    chunks = 1 + max((move.chunk for move in moves), default=0)
    sent = received = reduced = 0.0
    links: dict[tuple[int, int], float] = {}
    for move in moves:
        is_send = move.kind is Kind.SEND
        pair = (0, move.peer) if is_send else (move.peer, 0)
        links[pair] = links.get(pair, 0.0) + 1 / chunks
        sent += is_send / chunks
        received += (not is_send) / chunks
        reduced += (move.kind is Kind.REDUCE) / chunks
    return ScheduleProfile(
        depth=DEPTHS[algorithm](size),
        messages=len(moves),
        sent=(sent,) * size,
        received=(received,) * size,
        reduced=(reduced,) * size,
        links=links,
        fan_in=sum(to == 0 for _, to in links),
        is_exchange=algorithm == "exchange",
    )
