"""Shows the progress of ``ringleader work``: a bar on a terminal, else log lines."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

from ringleader.cli.units import format_bytes

if TYPE_CHECKING:  # torch takes a second to import; --help shall not
    from ringleader.paramserver.protocol.messages import JoinAnswer
    from ringleader.paramserver.worker.observer import Observer
    from ringleader.paramserver.worker.observer import Progress as WorkProgress

_LINE_EVERY_S = 10.0
"""Interval of log lines. A terminal shows every step."""


class _Lines:
    """Prints the events of a worker as log lines."""

    def __init__(self) -> None:
        self._next_s = 0.0
        self._is_waiting = False

    def joined(self, run: JoinAnswer, device: str) -> None:
        """Print the run and the device."""
        self.noted(
            f"joined as {run.worker}: task {run.task}, version {run.version} of "
            f"{run.rounds}, {run.mode} mode, on {device}"
        )

    def stepped(self, progress: WorkProgress) -> None:
        """Print a line if the last one is old enough."""
        now_s = time.monotonic()
        if now_s >= self._next_s:
            self._next_s = now_s + _LINE_EVERY_S
            step = f"version {progress.version} of {progress.rounds}"
            self.noted(f"{step}, {_describe(progress)}")

    def waiting(self, reason: str, pause_s: float) -> None:
        """Print the first of several failures in a row."""
        if not self._is_waiting:
            self.noted(f"{reason}; trying again until it answers")
        self._is_waiting = True

    def reconnected(self) -> None:
        """Print that the failures are over."""
        self._is_waiting = False
        self.noted("the server answers again")

    def noted(self, text: str) -> None:
        """Print a line to standard error."""
        typer.echo(text, err=True)


class _Bar(_Lines):
    """Shows a progress bar, and prints notices above it."""

    def __init__(self, progress: Progress) -> None:
        super().__init__()
        self._progress = progress
        self._bar = progress.add_task("joining", total=None, note="")

    def joined(self, run: JoinAnswer, device: str) -> None:
        """Start the bar. Before, the terminal was needed for questions."""
        super().joined(run, device)
        self._progress.start()
        self._show(run.version, run.rounds, "waiting for work")

    def stepped(self, progress: WorkProgress) -> None:
        """Update the bar."""
        self._show(progress.version, progress.rounds, _describe(progress))

    def waiting(self, reason: str, pause_s: float) -> None:
        """Show the pause in the bar."""
        super().waiting(reason, pause_s)
        self._progress.update(self._bar, note=f"next try in {pause_s:.0f} s")

    def noted(self, text: str) -> None:
        """Print a line above the bar."""
        self._progress.console.print(text, markup=False, highlight=False)

    def _show(self, version: int, rounds: int, note: str) -> None:
        text = f"version {version}/{rounds}"
        self._progress.update(
            self._bar, completed=version, total=rounds, description=text, note=note
        )


@contextmanager
def observe() -> Iterator[Observer]:
    """Show progress as a bar on a terminal, else as log lines."""
    if not sys.stderr.isatty():
        yield _Lines()
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=24),
        TextColumn("{task.fields[note]}"),
    )
    progress = Progress(*columns, console=Console(stderr=True))
    try:
        yield _Bar(progress)
    finally:
        progress.stop()


def _describe(progress: WorkProgress) -> str:
    loss = f"loss {progress.loss:.4f}, " if progress.counted else ""
    left = "" if progress.left_s is None else f", {progress.left_s:.0f} s left"
    up, down = format_bytes(progress.sent_bytes), format_bytes(progress.received_bytes)
    return f"{loss}{up} up, {down} down{left}"
