"""Shows ``ringleader demo --chaos`` in the terminal and returns its exit status."""

from __future__ import annotations

import json
import time
from contextlib import nullcontext

import typer
from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from ringleader.cli.demo.chaos import ChaosResult, run_chaos
from ringleader.cli.demo.loss_curve import draw
from ringleader.cli.interrupt import exit_on_sigterm

_SAY_EVERY = 50
"""Steps between two lines where the output is not a terminal."""
_SAY_AFTER_S = 10.0
"""Longest silence there."""


def show_chaos(nodes: int, epochs: int, *, as_json: bool) -> int:
    """Run the demo, draw its loss over the uninterrupted one; 0 if they agree."""
    console = Console(stderr=True, highlight=False)
    console.print(
        f"Training with {nodes} nodes on this machine; one of them is killed every few "
        "seconds. That takes half a minute on a quiet machine ...",
        soft_wrap=True,
    )
    live = Live(console=console, refresh_per_second=4, transient=True)
    lines = ProgressLines()

    def on_progress(result: ChaosResult) -> None:
        line = lines.line(result, time.monotonic())
        if console.is_terminal:
            live.update(Group(*([_drawn(result)] if result.run else []), lines.status))
        elif line:
            console.print(line, soft_wrap=True)

    with exit_on_sigterm(), live if console.is_terminal else nullcontext():
        result = run_chaos(nodes, epochs, on_progress)
    if as_json:
        typer.echo(json.dumps(_plain(result), indent=1))
    else:
        Console(highlight=False).print(_drawn(result))
        typer.echo("\n".join(result.lines()))
    for failure in result.failures():
        console.print(f"demo: {failure}", style="bold red", markup=False)
    return int(bool(result.failures()))


class ProgressLines:
    """Says how far the demo is: a line for each phase and some steps, and in between.

    For a terminal ``status`` is the line of this moment.
    """

    def __init__(self) -> None:
        self.status = ""
        self._began_s: float | None = None
        self._said: tuple[str, int] = ("", 0)
        self._said_s = 0.0

    def line(self, result: ChaosResult, now_s: float) -> str:
        """Return what to print at ``now_s``; nothing if it was printed a moment ago."""
        self._began_s = now_s if self._began_s is None else self._began_s
        self.status = f"{_status(result)} ({now_s - self._began_s:.0f} s)"
        told = (result.phase, len(result.run) // _SAY_EVERY)
        if told == self._said and now_s - self._said_s < _SAY_AFTER_S:
            return ""
        self._said, self._said_s = told, now_s
        return self.status


def _status(result: ChaosResult) -> str:
    if result.phase != "training":
        return result.phase
    step, kills = max(result.run), len(result.killed_at)
    left = "" if result.left_s is None else f", about {result.left_s:.0f} s left"
    return (
        f"step {step} of {result.steps}: loss {result.run[step]:.4f}, {kills} "
        f"kill{'s' if kills != 1 else ''}{left}"
    )


def _drawn(result: ChaosResult) -> Text:
    return draw(result.reference, result.run, result.killed_at)


def _plain(result: ChaosResult) -> dict[str, object]:
    return {
        "steps": len(result.run),
        "worker_kills": result.worker_kills,
        "machine_kills": result.machine_kills,
        "killed_at": result.killed_at,
        "seconds": result.seconds,
        "largest_difference": result.largest_difference,
        "troubles": result.failures(),
    }
