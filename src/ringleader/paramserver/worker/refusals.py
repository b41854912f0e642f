"""Follows the updates that the server refuses: shows some, ends the worker in time."""

from __future__ import annotations

import time

from ringleader.errors import PeerRefused
from ringleader.paramserver.worker.http_errors import SERVER
from ringleader.paramserver.worker.observer import Observer

MAX_IN_A_ROW = 10
"""Refused updates in a row after which the worker stops: its next ones fail as well."""
_NOTE_EVERY_S = 10.0
"""Least time between two notes, so that a server cannot fill a log with them."""


class Refusals:
    """Counts the refused updates since the last counted one."""

    def __init__(self, observer: Observer) -> None:
        self._observer = observer
        self._in_a_row = 0
        self._next_note_s = 0.0

    def add(self, version: int, reason: str) -> None:
        """Note a refused update; PeerRefused if there were too many in a row."""
        self._in_a_row += 1
        now_s = time.monotonic()
        if now_s >= self._next_note_s:
            self._next_note_s = now_s + _NOTE_EVERY_S
            self._observer.noted(f"version {version}: update refused: {reason}")
        if self._in_a_row >= MAX_IN_A_ROW:
            text = f"it refused {MAX_IN_A_ROW} updates in a row, the last one because"
            raise PeerRefused(SERVER, f"{text}: {reason}")

    def reset(self) -> None:
        """Note that an update was counted."""
        self._in_a_row = 0
