"""``JobNumbers`` and ``job_rows``: what the page shows of jobs. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ringleader.dashboard.curve import Curve
from ringleader.dashboard.number_files import NumberPoint
from ringleader.dashboard.page_state import machine_names

MAX_NAMES = 32
"""Numbers of a job that get a curve."""
MAX_JOBS = 32
MAX_RANKS = 256


@dataclass(slots=True)
class RankNumbers:
    """The latest numbers of one rank."""

    node: str
    step: int
    step_s: float | None
    time_s: float


@dataclass(frozen=True, slots=True)
class RankTraffic:
    """How much one rank has sent lately, and which rank it waits for."""

    rank: int
    sent_bytes_per_s: float = 0.0
    waits_for: int = -1
    """The rank for which it waits longest; -1: none."""
    wait_share: float = 0.0
    """Share of the time in which it waits for that rank."""
    compression: float = 0.0
    """Bytes before the codec per byte after it; 0: no codec."""


@dataclass(slots=True)
class JobNumbers:
    """What the ranks of one job have logged."""

    ranks: dict[int, RankNumbers] = field(default_factory=dict)
    traffic: dict[int, tuple[str, RankTraffic]] = field(default_factory=dict)
    """Node and traffic of each rank."""
    curves: dict[str, Curve] = field(default_factory=dict)
    _curve_ranks: dict[str, int] = field(default_factory=dict)
    """The lowest rank that logs a number; its values are drawn."""

    def add(self, node: str, rank: int, points: Iterable[NumberPoint]) -> None:
        """Add what a rank on ``node`` has logged since the last call."""
        if rank not in self.ranks and len(self.ranks) >= MAX_RANKS:
            return
        for point in points:
            known = self.ranks.get(rank)
            step_s = point.step_s
            if step_s is None and known is not None:
                step_s = known.step_s
            self.ranks[rank] = RankNumbers(node, point.step, step_s, point.time_s)
            for name, value in point.values.items():
                self._add_value(rank, name, point.step, value)

    def _add_value(self, rank: int, name: str, step: int, value: float | None) -> None:
        if name not in self.curves and len(self.curves) >= MAX_NAMES:
            return
        if rank < self._curve_ranks.get(name, rank + 1):
            self._curve_ranks[name] = rank
            self.curves[name] = Curve()
        if rank == self._curve_ranks[name]:
            # The page shows four digits; seventeen would be most of what it loads.
            short = None if value is None else float(f"{value:.6g}")
            self.curves[name].add(step, short)


def job_rows(
    nodes: Iterable[Mapping[str, Any]], numbers: Mapping[str, JobNumbers]
) -> list[dict[str, Any]]:
    """Return a row for each job that a node of the snapshot takes part in."""
    rows = list(nodes)
    names = machine_names(rows)
    jobs = sorted({job for row in rows for job in row["jobs"]})[:MAX_JOBS]
    return [_job_row(job, rows, names, numbers.get(job, JobNumbers())) for job in jobs]


def _job_row(
    job: str,
    rows: list[Mapping[str, Any]],
    names: Mapping[str, str],
    numbers: JobNumbers,
) -> dict[str, Any]:
    here = [row for row in rows if job in row["jobs"]]
    waits = [row for row in here if job in row.get("waiting_jobs", [])]
    # An agent learns of the round of another with the next view, which may be later.
    is_waiting = len(waits) == len(here) and not numbers.ranks
    machines = ", ".join(sorted(names[row["node"]] for row in here))
    return {
        "id": job,
        "name": job,
        "state": "waiting" if is_waiting else "running",
        "about": f"{'waits on' if is_waiting else 'on'} {machines}",
        "failure": "",
        "started_s": 0.0,  # only the launchers of such a job know
        "ended_s": 0.0,
        "numbers": number_curves(numbers),
        "ranks": rank_rows(numbers, names),
        "can_stop": False,
        "has_log": False,
    }


def number_curves(numbers: JobNumbers) -> dict[str, list[list[Any]]]:
    """Return name -> points, for the page."""
    return {
        name: [[step, value] for step, value in curve.shown()]
        for name, curve in numbers.curves.items()
    }


def rank_rows(numbers: JobNumbers, names: Mapping[str, str]) -> list[dict[str, Any]]:
    """Return a row for each rank that has logged or sent something."""
    known = sorted(numbers.ranks.keys() | numbers.traffic.keys())
    return [_rank_row(rank, numbers, names) for rank in known[:MAX_RANKS]]


def _rank_row(
    rank: int, numbers: JobNumbers, names: Mapping[str, str]
) -> dict[str, Any]:
    seen = numbers.ranks.get(rank)
    node, traffic = numbers.traffic.get(rank, ("", RankTraffic(rank)))
    step_s = seen.step_s if seen else None
    return {
        "rank": rank,
        "machine": names.get(seen.node if seen else node, "?"),
        "step": seen.step if seen else None,
        "step_s": None if step_s is None else float(f"{step_s:.3g}"),
        "sent_bytes_per_s": float(f"{traffic.sent_bytes_per_s:.2g}"),
        "compression": round(traffic.compression, 1),
        "waits_for": _waits_for(traffic, numbers, names),
    }


def _waits_for(
    traffic: RankTraffic, numbers: JobNumbers, names: Mapping[str, str]
) -> str:
    """Return for whom a rank waits, if that takes more than a twentieth of its time."""
    if traffic.waits_for < 0 or traffic.wait_share < 0.05:
        return ""
    share = f"{traffic.wait_share * 100:.0f} %"
    other = numbers.traffic.get(traffic.waits_for)
    if other is None and traffic.waits_for in numbers.ranks:
        node = numbers.ranks[traffic.waits_for].node
    else:
        node = other[0] if other else ""
    where = f" on {names[node]}" if node in names else ""
    return f"rank {traffic.waits_for}{where}, {share} of the time"
