"""Runs a benchmark: verifies and warms up each competitor, then measures in turns."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from ringleader.cli.bench.bench_plan import (
    TITLES,
    BenchCell,
    BenchPlan,
    Competitor,
    iterations,
    needed_bytes,
    turn_order,
)
from ringleader.cli.bench.bench_session import BenchSession, RankLocation, bench_session
from ringleader.cli.bench.measurement import Measurement, Results
from ringleader.cli.bench.system_info import available_bytes
from ringleader.cli.bench.table import size_text

Progress = Callable[[str, float], None]
"""Called before each turn with a description and the estimated seconds completed."""


@dataclass(slots=True)
class BenchOutcome:
    """Measurements, and notes about those that are missing."""

    results: Results = field(default_factory=Results)
    notes: list[str] = field(default_factory=list)
    versions: dict[str, str] = field(default_factory=dict)

    def note(self, text: str) -> None:
        """Add a note unless it exists."""
        if text not in self.notes:
            self.notes.append(text)


def run(
    plan: BenchPlan,
    locations: Callable[[int], Sequence[RankLocation]],
    progress: Progress,
    outcome: BenchOutcome,
) -> None:
    """Add the measurements of ``plan`` to ``outcome``, which survives an error."""
    for ranks in plan.ranks:
        progress(f"{ranks} ranks: starting processes", 0)
        with bench_session(plan.libraries, locations(ranks)) as session:
            for library, why in session.missing.items():
                outcome.note(f"{TITLES[library]} was left out: {why}")
            outcome.versions.update(session.versions)
            for cell in plan.cells():
                if _fits(cell, session, outcome):
                    session.prepare(cell)
                    _run_cell(plan, session, cell, progress, outcome)


def _run_cell(
    plan: BenchPlan,
    session: BenchSession,
    cell: BenchCell,
    progress: Progress,
    outcome: BenchOutcome,
) -> None:
    what = f"{session.ranks} ranks, {cell.operation} {size_text(cell.total_bytes)}"
    cost_s = plan.turn_cost_s(cell, session.ranks)
    counts: dict[Competitor, int] = {}
    for competitor in plan.competitors_for(cell.operation):
        progress(f"{what}: {competitor.title} (warm-up)", cost_s)
        refusal = (
            session.check(competitor) if competitor.library in session.pools else ""
        )
        if refusal is None:
            counts[competitor] = _warm_up(plan, session, competitor)
            continue
        progress(what, cost_s * plan.rounds)
        if refusal:
            outcome.note(f"{competitor.title}, {cell.operation}: {refusal}")
    rounds_s: dict[Competitor, list[float]] = {competitor: [] for competitor in counts}
    for turn in range(plan.rounds):
        for competitor in turn_order(tuple(counts), turn):
            progress(f"{what}: {competitor.title}", cost_s)
            rounds_s[competitor].append(session.batch(competitor, counts[competitor]))
    for competitor, seconds in rounds_s.items():
        found = (session.ranks, cell, competitor, counts[competitor], tuple(seconds))
        outcome.results.add(Measurement(*found))


def _warm_up(plan: BenchPlan, session: BenchSession, competitor: Competitor) -> int:
    """Run half a batch and return how many calls make a whole one.

    The first call is cold, so it only bounds the number of calls to try next.
    """
    first_s = session.batch(competitor, 1)
    second_s = session.batch(competitor, iterations(first_s, plan.batch_s / 4))
    third_s = session.batch(competitor, iterations(second_s, plan.batch_s / 4))
    return iterations(third_s, plan.batch_s)


def _fits(cell: BenchCell, session: BenchSession, outcome: BenchOutcome) -> bool:
    free = available_bytes()
    need = needed_bytes(cell, session.ranks, len(session.distinct_pools()))
    if free is None or need <= free:
        return True
    sizes = f"needs about {need >> 20} MiB of memory, {free >> 20} MiB are free"
    what = f"{size_text(cell.total_bytes)} on {session.ranks} ranks"
    outcome.note(f"{what} was left out: {sizes}")
    return False
