"""Decides which rank sends which chunk to which, round by round.

A chunk that one rank has received, it passes on: the machine that had the data sends
each chunk about once, however many machines need it. All ranks compute the same plan.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

CHUNKS_PER_ROUND = 16
"""Chunks that a rank receives in a round: after it, all ranks tell what failed."""
CHUNKS_AT_ONCE = 4
"""Chunks that a rank sends, and receives, at the same time: its memory for them."""


@dataclass(frozen=True, slots=True)
class Move:
    """A chunk goes from one rank to another."""

    source: int
    target: int
    number: int


@dataclass(slots=True)
class Distribution:
    """The chunks that ranks still lack, and the ranks that can send them."""

    missing: dict[int, set[int]]
    """Chunks that each receiving rank lacks."""
    owners: Sequence[int]
    """Ranks that had all chunks from the beginning."""
    refused: dict[tuple[int, int], set[int]] = field(default_factory=dict)
    """(target, chunk) -> sources that sent something else."""

    def is_done(self) -> bool:
        """Return whether nothing is missing."""
        return not any(self.missing.values())

    def next_round(self) -> tuple[list[Move], list[tuple[int, int]]]:
        """Return the next moves, and (rank, chunk) for which nobody is left to ask.

        Receivers begin at different chunks, so that they soon can serve each other.
        """
        moves: list[Move] = []
        lost: list[tuple[int, int]] = []
        sent: Counter[int] = Counter()
        receivers = [rank for rank, numbers in self.missing.items() if numbers]
        for turn, rank in enumerate(receivers):
            numbers = sorted(self.missing[rank])
            first = len(numbers) * turn // len(receivers)
            rotated = numbers[first:] + numbers[:first]
            for number in rotated[:CHUNKS_PER_ROUND]:
                sources = self._sources(rank, number)
                if not sources:
                    lost.append((rank, number))
                    continue
                source = min(sources, key=lambda each: (sent[each], each))
                sent[source] += 1
                moves.append(Move(source, rank, number))
        return moves, lost

    def apply(self, moves: Sequence[Move], failed: Mapping[int, Sequence[int]]) -> None:
        """Record the outcome of a round: ``failed`` has the chunks of each rank."""
        for move in moves:
            if move.number in failed.get(move.target, ()):
                key = (move.target, move.number)
                self.refused.setdefault(key, set()).add(move.source)
            else:
                self.missing[move.target].discard(move.number)

    def _sources(self, rank: int, number: int) -> list[int]:
        others = [r for r, n in self.missing.items() if r != rank and number not in n]
        refused = self.refused.get((rank, number), ())
        return [each for each in (*self.owners, *others) if each not in refused]


def waves(moves: Sequence[Move]) -> list[list[Move]]:
    """Split moves so that no rank sends or receives too many chunks at once."""
    found: list[list[Move]] = []
    sending: Counter[int] = Counter()
    receiving: Counter[int] = Counter()
    for move in moves:
        slot = max(sending[move.source], receiving[move.target])
        sending[move.source] = receiving[move.target] = slot + 1
        wave = slot // CHUNKS_AT_ONCE
        found += [[] for _ in range(wave + 1 - len(found))]
        found[wave].append(move)
    return found
