"""``draw``: two loss curves in a terminal, one over the other. Pure."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping

from rich.text import Text

REFERENCE, RUN, KILL = "·", "●", "✗"


def draw(
    reference: Mapping[int, float],
    run: Mapping[int, float],
    kills: Collection[int],
    *,
    width: int = 68,
    height: int = 14,
) -> Text:
    """Draw loss by step, on a logarithmic scale: the reference, the run over it.

    ``kills`` are the steps at which a machine was killed; they are marked below.
    """
    last = max([*reference, *run, 1])
    losses = [loss for loss in (*reference.values(), *run.values()) if loss > 0]
    low, high = min(losses, default=0.1), max(losses, default=1.0)
    rows = [[" "] * width for _ in range(height)]
    for curve, mark in ((reference, REFERENCE), (run, RUN)):
        for step, loss in curve.items():
            rows[_row(loss, low, high, height)][_column(step, last, width)] = mark
    line = [" "] * width
    for step in kills:
        line[_column(step, last, width)] = KILL
    drawn = Text()
    for number, row in enumerate(rows):
        label = {0: f"{high:.2g}", height - 1: f"{low:.2g}"}.get(number, "")
        drawn.append(f"{label:>7} │")
        for cell in row:
            drawn.append(cell, style={RUN: "green", REFERENCE: "white"}.get(cell, ""))
        drawn.append("\n")
    drawn.append(" " * 8 + "└" + "─" * width + "\n" + " " * 9)
    drawn.append("".join(line) + "\n", style="red")
    legend = f"{RUN} the run   {REFERENCE} one process without failures   {KILL} a kill"
    drawn.append(f"{' ' * 9}step 1 to {last}   {legend}\n")
    return drawn


def _column(step: int, last: int, width: int) -> int:
    return min(width - 1, (step - 1) * width // last) if step > 0 else 0


def _row(loss: float, low: float, high: float, height: int) -> int:
    """Return the row of a loss, 0 at the top."""
    if not loss > low or not high > low:  # also when it is NaN
        return height - 1
    share = (math.log(min(loss, high)) - math.log(low)) / (
        math.log(high) - math.log(low)
    )
    return height - 1 - round(share * (height - 1))
