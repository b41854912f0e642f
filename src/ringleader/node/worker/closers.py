"""``Closers``: what to close at shutdown, in reverse order of registration."""

from __future__ import annotations

import threading
from collections.abc import Callable

from ringleader.errors import ConfigError


class Closers:
    """Functions that run once, the last registered first. Any thread may call it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._closers: list[tuple[str, Callable[[], object]]] = []
        self._is_closed = False

    def add(self, name: str, close: Callable[[], object]) -> None:
        """Register ``close``; raises ``ConfigError`` if shutdown has begun.

        After that, nothing would ever call it.
        """
        with self._lock:
            if self._is_closed:
                text = f"closer {name!r}: the worker node is closed already"
                raise ConfigError(f"{text}; close it yourself")
            self._closers.append((name, close))

    def run(self) -> list[Exception]:
        """Run all closers and return their errors; a second call does nothing."""
        with self._lock:
            self._is_closed = True
            closers, self._closers = self._closers, []
        errors: list[Exception] = []
        for name, close in reversed(closers):
            try:
                close()
            except Exception as exc:  # noqa: BLE001 - the others must be closed, too
                exc.add_note(f"raised by closer {name!r}")
                errors.append(exc)
        return errors
