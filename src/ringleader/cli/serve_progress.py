"""The progress lines of ``ringleader serve``."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:  # slow to import; --help needs none of them
    from ringleader.paramserver.server.scheduler import Scheduler

_LINE_EVERY_S = 2.0
_FIRST_REMINDER_S, _LAST_REMINDER_S = 30.0, 600.0
"""Without any change, lines come at intervals that double from the one to the other."""
_MAX_NAMES = 3


class ServeProgress:
    """Prints a line when something has changed, or nothing has for long."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._shown = (-1, -1)
        self._next_s = 0.0
        self._reminder_s = _FIRST_REMINDER_S
        self._remind_at_s = 0.0

    def show(self) -> None:
        """Print a line if one is due; called several times a second."""
        now_s = time.monotonic()
        scheduler = self._scheduler
        state = (scheduler.version, len(scheduler.workers.present(now_s)))
        if state != self._shown:
            if now_s < self._next_s and not scheduler.is_finished:
                return
            self._reminder_s = _FIRST_REMINDER_S
        elif now_s < self._remind_at_s or scheduler.is_finished:
            return
        else:
            self._reminder_s = min(2 * self._reminder_s, _LAST_REMINDER_S)
        is_reminder, self._shown = state == self._shown, state
        self._next_s = now_s + _LINE_EVERY_S
        self._remind_at_s = now_s + self._reminder_s
        loss = f", loss {scheduler.losses[-1][1]:.4f}" if scheduler.losses else ""
        typer.echo(
            f"version {state[0]} of {scheduler.plan.rounds}{loss}, "
            f"{state[1]} worker{'' if state[1] == 1 else 's'} present"
            f"{describe_wait(scheduler, now_s, is_long=is_reminder)}"
        )


def describe_wait(scheduler: Scheduler, now_s: float, *, is_long: bool) -> str:
    """Say which workers the run waits for; ``is_long``: also those of the round."""
    workers = scheduler.workers
    if scheduler.is_finished:
        return ""
    if missing := scheduler.missing(now_s):
        silent = [w for w in workers.connected(now_s) if not workers[w].has_asked]
        more = f"; {_names(scheduler, silent)} joined without asking" if silent else ""
        which = "the round" if scheduler.version else "the first round"
        return f", {which} waits for {missing} more to ask for work{more}"
    if is_long and (awaited := scheduler.awaited()):
        return f", the round waits for {_names(scheduler, awaited)}"
    return ""


def _names(scheduler: Scheduler, ids: list[str]) -> str:
    names = ", ".join(f"{scheduler.workers[w].name} ({w})" for w in ids[:_MAX_NAMES])
    rest = len(ids) - _MAX_NAMES
    return f"{names} and {rest} more" if rest > 0 else names
