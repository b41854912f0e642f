"""The representation of a collective: one list of moves per rank.

Theory of operation. A tensor is cut into chunks. A schedule is the program of one rank:
moves in order, each sending one chunk to a peer, or receiving one and either adding it
to what the rank holds (REDUCE) or putting it in its place (COPY). Two rules make a set
of programs executable:

* links are ordered, so the chunks rank a sends to b are those b receives from a, in
  the same order;
* a move touches its chunk only after every earlier move of the same program on that
  chunk. Moves on different chunks are independent.

The engine may therefore run far ahead of program order, byte by byte, and the result is
still the one of the program read from top to bottom. ``schedule_checker.py`` verifies
programs, ``cost_model.py`` predicts their time, and the package ``simulation`` replays
them in virtual time.
"""

from __future__ import annotations

from enum import IntEnum
from itertools import pairwise
from typing import NamedTuple


class Kind(IntEnum):
    """Send a chunk, or receive it and add it or copy it."""

    SEND = 0
    REDUCE = 1
    COPY = 2


class Move(NamedTuple):
    """One chunk to or from one peer."""

    kind: Kind
    peer: int
    chunk: int


Program = list[Move]
"""The moves of one rank, in order."""


def send(peer: int, chunk: int) -> Move:
    """Send ``chunk`` after all earlier moves on it."""
    return Move(Kind.SEND, peer, chunk)


def reduce(peer: int, chunk: int) -> Move:
    """Receive ``chunk`` from ``peer`` and add it to our own."""
    return Move(Kind.REDUCE, peer, chunk)


def copy(peer: int, chunk: int) -> Move:
    """Receive ``chunk`` from ``peer`` and replace our own."""
    return Move(Kind.COPY, peer, chunk)


def split(count: int, parts: int) -> list[tuple[int, int]]:
    """Split ``range(count)`` into ``parts`` ranges of nearly equal length."""
    base, extra = divmod(count, parts)
    starts = [i * base + min(i, extra) for i in range(parts + 1)]
    return list(pairwise(starts))
