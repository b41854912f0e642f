"""The metrics of this process: on or off, snapshot, reset, collector.

Packages that measure ask ``is_enabled`` or follow the switch; this package knows none
of them.
"""

from __future__ import annotations

import math
import os
import threading
from collections.abc import Callable

from ringleader.errors import ConfigError
from ringleader.metrics.publisher import Collector, Publisher
from ringleader.metrics.registry import Registry
from ringleader.metrics.snapshot import Snapshot
from ringleader.settings.metrics import metrics_settings

DEFAULT_EVERY_S = 10.0


class ProcessMetrics:
    """The registry and the publisher of one process, and whether they are used."""

    def __init__(self) -> None:
        self.registry = Registry()
        self.publisher = Publisher(self.registry)
        self.is_enabled = False
        self._listeners: list[Callable[[bool], None]] = []
        self._lock = threading.RLock()

    def start_over(self) -> None:
        """Count from 0 in a forked child: its parent counts and publishes its own."""
        self.registry = Registry()
        self.publisher = Publisher(self.registry)
        self._lock = threading.RLock()

    def on_switch(self, listener: Callable[[bool], None]) -> None:
        """Call ``listener`` whenever measuring begins (True) or ends."""
        with self._lock:
            self._listeners.append(listener)
            if self.is_enabled:
                listener(True)

    def switch(self, *, to: bool) -> None:
        """Begin or end measuring."""
        with self._lock:
            if self.is_enabled != to:
                self.is_enabled = to
                for listener in self._listeners:
                    listener(to)

    def follow_environment(self) -> None:
        """Begin measuring if the environment says so; groups call it when they open."""
        wanted = metrics_settings()
        if wanted.is_on:
            self.publisher.publish_to(wanted.folder)
            self.switch(to=True)


current = ProcessMetrics()
"""The metrics of this process."""


def enable() -> None:
    """Begin to measure in this process, also in groups that are open."""
    current.switch(to=True)


def disable() -> None:
    """Measure no more; what was counted stays in the snapshot."""
    current.switch(to=False)


def snapshot() -> Snapshot:
    """Return all values of this process since its start or the last ``reset``."""
    return current.registry.snapshot()


def reset() -> None:
    """Count everything from 0 again; gauges stay what they are."""
    current.registry.reset()


def set_collector(
    collector: Collector | None, *, every_s: float = DEFAULT_EVERY_S
) -> None:
    """Call ``collector(snapshot)`` every ``every_s`` seconds while a group is open.

    It is called in a thread of its own, and once more when the last group closes. An
    error in it is logged and ends nothing. It turns measuring on. None removes it.
    """
    if not math.isfinite(every_s) or every_s <= 0:
        raise ConfigError(f"set_collector: every_s is {every_s}; use seconds above 0")
    if collector is not None and not callable(collector):
        raise ConfigError(
            "set_collector: the collector must be a function of one value"
        )
    current.publisher.set_collector(collector, every_s)
    if collector is not None:
        enable()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=current.start_over)
