"""What was done to elastic runs and measured, as benchmarks save and continue it."""

from __future__ import annotations

import statistics

import msgspec


class Cell(msgspec.Struct):
    """The kills at one point, in one role."""

    kills: int = 0
    gaps_ms: list[float] = []
    """From a kill to the first step of the last survivor without the dead."""
    overheads_ms: list[float] = []
    """The same, less the median of the five steps before the kill."""


class Tally(msgspec.Struct):
    """All kills in worlds of one size."""

    cells: dict[str, Cell] = {}
    """By point and role."""
    not_reached: dict[str, int] = {}
    """Armed points that nobody reached."""
    failures: list[str] = []
    silent_s: dict[str, list[float]] = {}
    """How a machine became silent -> time until the others had made a step."""
    steps_s: list[float] = []
    """Steps without a kill."""
    steps_compared: int = 0
    samples_in_ledgers: int = 0
    largest_difference: float = 0.0

    @property
    def num_kills(self) -> int:
        """All kills."""
        return sum(cell.kills for cell in self.cells.values())

    @property
    def overheads_s(self) -> list[float]:
        """The overheads of all kills."""
        cells = self.cells.values()
        return [each / 1e3 for cell in cells for each in cell.overheads_ms]

    def note_kill(
        self, name: str, gap_s: float | None = None, step_s: float = 0.0
    ) -> None:
        """Note a kill, and its gap if it was measured."""
        cell = self.cells.setdefault(name, Cell())
        cell.kills += 1
        if gap_s is not None:
            cell.gaps_ms.append(round(gap_s * 1e3, 1))
            cell.overheads_ms.append(round(max(0.0, gap_s - step_s) * 1e3, 1))

    def add(self, other: Tally) -> None:
        """Add what another process has measured."""
        for name, cell in other.cells.items():
            ours = self.cells.setdefault(name, Cell())
            ours.kills += cell.kills
            ours.gaps_ms += cell.gaps_ms
            ours.overheads_ms += cell.overheads_ms
        for name, number in other.not_reached.items():
            self.not_reached[name] = self.not_reached.get(name, 0) + number
        for way, times_s in other.silent_s.items():
            self.silent_s.setdefault(way, []).extend(times_s)
        self.failures += other.failures
        self.steps_s += other.steps_s
        self.steps_compared += other.steps_compared
        self.samples_in_ledgers += other.samples_in_ledgers
        self.largest_difference = max(self.largest_difference, other.largest_difference)


def quantiles(values: list[float]) -> dict[str, float]:
    """Return median, 99th percentile and largest value."""
    if not values:
        return {}
    ordered = sorted(values)
    at = min(len(ordered) - 1, int(0.99 * len(ordered)))
    return {
        "p50": round(statistics.median(ordered), 4),
        "p99": round(ordered[at], 4),
        "max": round(ordered[-1], 4),
    }
