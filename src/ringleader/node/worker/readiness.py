"""``ReadinessChecks``: named checks of whether a worker can do its work now."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping

from ringleader.errors import ConfigError

Check = Callable[[], object]
"""Returns None or True if all is well, and False or a reason if not; may raise."""

MAX_REASON = 200


class ReadinessChecks:
    """Checks by name. Any thread may call it; checks run in the thread that asks."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._checks: dict[str, Check] = {}

    def add(self, name: str, check: Check) -> None:
        """Register a check; raises ``ConfigError`` if the name is taken."""
        with self._lock:
            if name in self._checks:
                raise ConfigError(f"readiness check {name!r} exists; choose a name")
            self._checks[name] = check

    def failures(self) -> Mapping[str, str]:
        """Run all checks; return the reason of each that fails."""
        with self._lock:
            checks = dict(self._checks)
        found = {name: _run(check) for name, check in checks.items()}
        return {name: reason for name, reason in found.items() if reason}


def _run(check: Check) -> str:
    """Return why a check fails; empty if it does not."""
    try:
        result = check()
    except Exception as exc:  # noqa: BLE001 - a check that raises has failed
        return f"{type(exc).__name__}: {exc}"[:MAX_REASON]
    if result is None or result is True:
        return ""
    return str(result or "not ready")[:MAX_REASON]
