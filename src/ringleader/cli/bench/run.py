"""The run itself: for every cell prove each contender, warm it up, then take turns."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from ringleader.cli.bench.machine import available_bytes
from ringleader.cli.bench.plan import (
    TITLES,
    Cell,
    Contender,
    Plan,
    iterations,
    needed_bytes,
    turn_order,
)
from ringleader.cli.bench.result import Measurement, Results
from ringleader.cli.bench.session import Place, Session, session
from ringleader.cli.bench.table import size_text

Progress = Callable[[str, float], None]
"""Called before each turn with what is measured, and the cost of what was finished."""


@dataclass(slots=True)
class Outcome:
    """Measurements, and everything a reader must know about what is not there."""

    results: Results = field(default_factory=Results)
    notes: list[str] = field(default_factory=list)
    versions: dict[str, str] = field(default_factory=dict)

    def note(self, text: str) -> None:
        """Say something once."""
        if text not in self.notes:
            self.notes.append(text)


def run(
    plan: Plan,
    places: Callable[[int], Sequence[Place]],
    progress: Progress,
    outcome: Outcome,
) -> None:
    """Measure the whole plan into ``outcome``, which keeps what an error leaves."""
    for ranks in plan.ranks:
        progress(f"{ranks} ranks: starting processes", 0)
        with session(plan.engines, places(ranks)) as here:
            for engine, why in here.missing.items():
                outcome.note(f"{TITLES[engine]} was left out: {why}")
            outcome.versions.update(here.versions)
            for cell in plan.cells():
                if _fits(cell, here, outcome):
                    here.prepare(cell)
                    _run_cell(plan, here, cell, progress, outcome)


def _run_cell(
    plan: Plan, here: Session, cell: Cell, progress: Progress, outcome: Outcome
) -> None:
    what = f"{here.ranks} ranks, {cell.operation} {size_text(cell.total_bytes)}"
    cost_s = plan.turn_cost_s(cell, here.ranks)
    counts: dict[Contender, int] = {}
    for contender in plan.contenders_for(cell.operation):
        progress(f"{what}: {contender.title} (warm-up)", cost_s)
        refusal = here.check(contender) if contender.engine in here.crews else ""
        if refusal is None:
            counts[contender] = _warm_up(plan, here, contender)
            continue
        progress(what, cost_s * plan.rounds)
        if refusal:
            outcome.note(f"{contender.title}, {cell.operation}: {refusal}")
    rounds_s: dict[Contender, list[float]] = {contender: [] for contender in counts}
    for turn in range(plan.rounds):
        for contender in turn_order(tuple(counts), turn):
            progress(f"{what}: {contender.title}", cost_s)
            rounds_s[contender].append(here.batch(contender, counts[contender]))
    for contender, found_s in rounds_s.items():
        found = (here.ranks, cell, contender, counts[contender], tuple(found_s))
        outcome.results.add(Measurement(*found))


def _warm_up(plan: Plan, here: Session, contender: Contender) -> int:
    """Half a batch unmeasured, and from it how many calls make a whole one.

    The first call is cold, so it only says how many are safe to try.
    """
    first_s = here.batch(contender, 1)
    second_s = here.batch(contender, iterations(first_s, plan.batch_s / 4))
    third_s = here.batch(contender, iterations(second_s, plan.batch_s / 4))
    return iterations(third_s, plan.batch_s)


def _fits(cell: Cell, here: Session, outcome: Outcome) -> bool:
    free = available_bytes()
    need = needed_bytes(cell, here.ranks, len(here.distinct_crews()))
    if free is None or need <= free:
        return True
    sizes = f"needs about {need >> 20} MiB of memory, {free >> 20} MiB are free"
    what = f"{size_text(cell.total_bytes)} on {here.ranks} ranks"
    outcome.note(f"{what} was left out: {sizes}")
    return False
