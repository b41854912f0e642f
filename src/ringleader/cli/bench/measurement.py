"""Measurements of a run, their medians, ratios and JSON. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from dataclasses import dataclass

from ringleader.cli.bench.bench_plan import PEERS, BenchCell, Competitor
from ringleader.cli.json_socket import Message


@dataclass(frozen=True, slots=True)
class Measurement:
    """One competitor on one cell."""

    ranks: int
    cell: BenchCell
    competitor: Competitor
    iterations: int
    rounds_s: tuple[float, ...]
    """Seconds per call of each round, on the slowest rank."""

    @property
    def call_s(self) -> float:
        """Median over the rounds."""
        return statistics.median(self.rounds_s)

    def to_json(self) -> Message:
        """Return a flat dictionary with units in the names."""
        return {
            "ranks": self.ranks,
            "operation": self.cell.operation,
            "bytes": self.cell.total_bytes,
            "engine": self.competitor.library,
            "algorithm": self.competitor.algorithm,
            "median_s": self.call_s,
            "min_s": min(self.rounds_s),
            "max_s": max(self.rounds_s),
            "iterations": self.iterations,
            "rounds_s": list(self.rounds_s),
        }


Key = tuple[int, BenchCell, Competitor]


class Results:
    """All measurements of a run, with lookup by what was measured."""

    def __init__(self, measurements: Iterable[Measurement] = ()) -> None:
        self._by_key: dict[Key, Measurement] = {}
        for measurement in measurements:
            self.add(measurement)

    def add(self, found: Measurement) -> None:
        """Add one measurement."""
        self._by_key[found.ranks, found.cell, found.competitor] = found

    def all(self) -> list[Measurement]:
        """Return all measurements in the order in which they were made."""
        return list(self._by_key.values())

    def competitors(self) -> list[Competitor]:
        """List the competitors in order of appearance."""
        return list(dict.fromkeys(found.competitor for found in self.all()))

    def operations(self) -> list[str]:
        """List the operations in order of appearance."""
        return list(dict.fromkeys(found.cell.operation for found in self.all()))

    def ranks(self) -> list[int]:
        """List the numbers of ranks in order of appearance."""
        return list(dict.fromkeys(found.ranks for found in self.all()))

    def cells(self, ranks: int, operation: str) -> list[BenchCell]:
        """List the cells of one operation."""
        cells = (found.cell for found in self.all() if found.ranks == ranks)
        return list(dict.fromkeys(c for c in cells if c.operation == operation))

    def call_s(
        self, ranks: int, cell: BenchCell, competitor: Competitor
    ) -> float | None:
        """Return the median seconds per call; None if it was not measured."""
        found = self._by_key.get((ranks, cell, competitor))
        return found.call_s if found else None

    def ratio(
        self, ranks: int, cell: BenchCell, ours: Competitor, peer: Competitor
    ) -> float | None:
        """Return how many times faster ``ours`` is than ``peer``."""
        our_s = self.call_s(ranks, cell, ours)
        peer_s = self.call_s(ranks, cell, peer)
        return peer_s / our_s if our_s and peer_s else None

    def peers(self) -> list[Competitor]:
        """List the measured libraries that are not Ringleader."""
        return [c for c in self.competitors() if c.library in PEERS]


@dataclass(frozen=True, slots=True)
class AutoCheck:
    """Our automatic choice on one cell compared with the best fixed algorithm."""

    ranks: int
    cell: BenchCell
    library: str
    auto_s: float
    best_s: float
    best: str

    @property
    def loss(self) -> float:
        """Time relative to the best fixed algorithm; 1.1 is ten percent slower."""
        return self.auto_s / self.best_s


def check_auto(results: Results) -> list[AutoCheck]:
    """Compare our automatic choice with the best fixed algorithm of every cell."""
    found: list[AutoCheck] = []
    for auto in results.all():
        if not auto.competitor.is_ours or auto.competitor.algorithm is not None:
            continue
        fixed = [
            other
            for other in results.all()
            if (other.ranks, other.cell) == (auto.ranks, auto.cell)
            and other.competitor.library == auto.competitor.library
            and other.competitor.algorithm is not None
        ]
        if fixed:
            best = min(fixed, key=lambda other: other.call_s)
            found.append(
                AutoCheck(
                    auto.ranks,
                    auto.cell,
                    auto.competitor.library,
                    auto.call_s,
                    best.call_s,
                    best.competitor.algorithm or "",
                )
            )
    return found
