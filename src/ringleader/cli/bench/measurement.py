"""What a run found: measurements, medians, ratios and their JSON. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from dataclasses import dataclass

from ringleader.cli.bench.bench_plan import PEERS, Cell, Competitor
from ringleader.cli.json_socket import Message


@dataclass(frozen=True, slots=True)
class Measurement:
    """One contender on one cell."""

    ranks: int
    cell: Cell
    competitor: Competitor
    iterations: int
    rounds_s: tuple[float, ...]
    """Seconds per call of each round: a batch on its slowest rank, divided by calls."""

    @property
    def call_s(self) -> float:
        """The median round."""
        return statistics.median(self.rounds_s)

    def to_json(self) -> Message:
        """Flat, with units in the names."""
        return {
            "ranks": self.ranks,
            "operation": self.cell.operation,
            "bytes": self.cell.total_bytes,
            "engine": self.competitor.engine,
            "algorithm": self.competitor.algorithm,
            "median_s": self.call_s,
            "min_s": min(self.rounds_s),
            "max_s": max(self.rounds_s),
            "iterations": self.iterations,
            "rounds_s": list(self.rounds_s),
        }


Key = tuple[int, Cell, Competitor]


class Results:
    """All measurements of a run, found by what was measured."""

    def __init__(self, measurements: Iterable[Measurement] = ()) -> None:
        self._by_key: dict[Key, Measurement] = {}
        for measurement in measurements:
            self.add(measurement)

    def add(self, found: Measurement) -> None:
        """Keep one more measurement."""
        self._by_key[found.ranks, found.cell, found.competitor] = found

    def all(self) -> list[Measurement]:
        """In the order in which they were made."""
        return list(self._by_key.values())

    def competitors(self) -> list[Competitor]:
        """Who was measured, in order of appearance."""
        return list(dict.fromkeys(found.competitor for found in self.all()))

    def operations(self) -> list[str]:
        """Which operations were measured, in order of appearance."""
        return list(dict.fromkeys(found.cell.operation for found in self.all()))

    def ranks(self) -> list[int]:
        """Which numbers of ranks were measured."""
        return list(dict.fromkeys(found.ranks for found in self.all()))

    def cells(self, ranks: int, operation: str) -> list[Cell]:
        """The sizes measured for one operation."""
        cells = (found.cell for found in self.all() if found.ranks == ranks)
        return list(dict.fromkeys(c for c in cells if c.operation == operation))

    def call_s(self, ranks: int, cell: Cell, competitor: Competitor) -> float | None:
        """Median seconds per call; None where it was not measured."""
        found = self._by_key.get((ranks, cell, competitor))
        return found.call_s if found else None

    def ratio(
        self, ranks: int, cell: Cell, ours: Competitor, peer: Competitor
    ) -> float | None:
        """How many times faster ``ours`` is than ``peer``."""
        our_s = self.call_s(ranks, cell, ours)
        peer_s = self.call_s(ranks, cell, peer)
        return peer_s / our_s if our_s and peer_s else None

    def peers(self) -> list[Competitor]:
        """The engines of others that were measured."""
        return [c for c in self.competitors() if c.engine in PEERS]


@dataclass(frozen=True, slots=True)
class AutoCheck:
    """How our own choice did on one cell against every fixed algorithm."""

    ranks: int
    cell: Cell
    engine: str
    auto_s: float
    best_s: float
    best: str

    @property
    def loss(self) -> float:
        """1.0 is as good as the best fixed algorithm; 1.1 is ten percent slower."""
        return self.auto_s / self.best_s


def check_auto(results: Results) -> list[AutoCheck]:
    """Our choice against the best fixed algorithm, for every cell that has both."""
    found: list[AutoCheck] = []
    for auto in results.all():
        if not auto.competitor.is_ours or auto.competitor.algorithm is not None:
            continue
        fixed = [
            other
            for other in results.all()
            if (other.ranks, other.cell) == (auto.ranks, auto.cell)
            and other.competitor.engine == auto.competitor.engine
            and other.competitor.algorithm is not None
        ]
        if fixed:
            best = min(fixed, key=lambda other: other.call_s)
            found.append(
                AutoCheck(
                    auto.ranks,
                    auto.cell,
                    auto.competitor.engine,
                    auto.call_s,
                    best.call_s,
                    best.competitor.algorithm or "",
                )
            )
    return found
