"""The run itself: for every cell prove each contender, warm it up, then take turns."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from ringleader.cli.bench.bench_plan import (
    TITLES,
    BenchPlan,
    Cell,
    Competitor,
    iterations,
    needed_bytes,
    turn_order,
)
from ringleader.cli.bench.bench_session import BenchSession, RankLocation, session
from ringleader.cli.bench.measurement import Measurement, Results
from ringleader.cli.bench.system_info import available_bytes
from ringleader.cli.bench.table import size_text

Progress = Callable[[str, float], None]
"""Called before each turn with what is measured, and the cost of what was finished."""


@dataclass(slots=True)
class BenchOutcome:
    """Measurements, and everything a reader must know about what is not there."""

    results: Results = field(default_factory=Results)
    notes: list[str] = field(default_factory=list)
    versions: dict[str, str] = field(default_factory=dict)

    def note(self, text: str) -> None:
        """Say something once."""
        if text not in self.notes:
            self.notes.append(text)


def run(
    plan: BenchPlan,
    locations: Callable[[int], Sequence[RankLocation]],
    progress: Progress,
    outcome: BenchOutcome,
) -> None:
    """Measure the whole plan into ``outcome``, which keeps what an error leaves."""
    for ranks in plan.ranks:
        progress(f"{ranks} ranks: starting processes", 0)
        with session(plan.engines, locations(ranks)) as here:
            for engine, why in here.missing.items():
                outcome.note(f"{TITLES[engine]} was left out: {why}")
            outcome.versions.update(here.versions)
            for cell in plan.cells():
                if _fits(cell, here, outcome):
                    here.prepare(cell)
                    _run_cell(plan, here, cell, progress, outcome)


def _run_cell(
    plan: BenchPlan,
    here: BenchSession,
    cell: Cell,
    progress: Progress,
    outcome: BenchOutcome,
) -> None:
    what = f"{here.ranks} ranks, {cell.operation} {size_text(cell.total_bytes)}"
    cost_s = plan.turn_cost_s(cell, here.ranks)
    counts: dict[Competitor, int] = {}
    for competitor in plan.competitors_for(cell.operation):
        progress(f"{what}: {competitor.title} (warm-up)", cost_s)
        refusal = here.check(competitor) if competitor.engine in here.pools else ""
        if refusal is None:
            counts[competitor] = _warm_up(plan, here, competitor)
            continue
        progress(what, cost_s * plan.rounds)
        if refusal:
            outcome.note(f"{competitor.title}, {cell.operation}: {refusal}")
    rounds_s: dict[Competitor, list[float]] = {competitor: [] for competitor in counts}
    for turn in range(plan.rounds):
        for competitor in turn_order(tuple(counts), turn):
            progress(f"{what}: {competitor.title}", cost_s)
            rounds_s[competitor].append(here.batch(competitor, counts[competitor]))
    for competitor, found_s in rounds_s.items():
        found = (here.ranks, cell, competitor, counts[competitor], tuple(found_s))
        outcome.results.add(Measurement(*found))


def _warm_up(plan: BenchPlan, here: BenchSession, competitor: Competitor) -> int:
    """Half a batch unmeasured, and from it how many calls make a whole one.

    The first call is cold, so it only says how many are safe to try.
    """
    first_s = here.batch(competitor, 1)
    second_s = here.batch(competitor, iterations(first_s, plan.batch_s / 4))
    third_s = here.batch(competitor, iterations(second_s, plan.batch_s / 4))
    return iterations(third_s, plan.batch_s)


def _fits(cell: Cell, here: BenchSession, outcome: BenchOutcome) -> bool:
    free = available_bytes()
    need = needed_bytes(cell, here.ranks, len(here.distinct_pools()))
    if free is None or need <= free:
        return True
    sizes = f"needs about {need >> 20} MiB of memory, {free >> 20} MiB are free"
    what = f"{size_text(cell.total_bytes)} on {here.ranks} ranks"
    outcome.note(f"{what} was left out: {sizes}")
    return False
