"""Publisher: hands snapshots to a file and to the user's collector, in a thread.

The thread runs only while a group is open and there is somebody to tell. The last group
that closes ends it, after the last values have been handed over.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from ringleader.metrics.registry import Registry
from ringleader.metrics.snapshot import Snapshot
from ringleader.metrics.worker_files import EVERY_S, write_file

_log = logging.getLogger(__name__)

JOIN_S = 5.0
"""Time that the last close gives to a collector that is slow."""

Collector = Callable[[Snapshot], object]


@dataclass(slots=True)
class _Receiver:
    hand_over: Collector
    every_s: float
    next_s: float = 0.0
    has_failed: bool = False


class Publisher:
    """Calls receivers at their intervals while groups are open. Thread-safe."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._lock = threading.Lock()
        self._receivers: dict[str, _Receiver] = {}
        self._num_open = 0
        self._rank = ""
        self._thread: threading.Thread | None = None
        self._stop = threading.Event()

    def publish_to(self, folder: Path | None) -> None:
        """Write a file for the agent into ``folder`` from now on."""
        if folder is None:
            self._set("file", None)
            return

        def write(snapshot: Snapshot) -> None:
            write_file(folder, self._rank, snapshot)

        self._set("file", _Receiver(write, EVERY_S))

    def set_collector(self, collector: Collector | None, every_s: float) -> None:
        """Call ``collector`` every ``every_s`` from now on; None ends it."""
        receiver = None if collector is None else _Receiver(collector, every_s)
        self._set("collector", receiver)

    def _set(self, name: str, receiver: _Receiver | None) -> None:
        with self._lock:
            if receiver is None:
                self._receivers.pop(name, None)
            else:
                self._receivers[name] = receiver
            self._adjust()

    def opened(self, rank: int) -> None:
        """Note that a group was opened, in which this process has ``rank``."""
        with self._lock:
            self._num_open += 1
            self._rank = self._rank or str(rank)
            self._adjust()

    def closed(self) -> None:
        """Note that a group was closed; returns when its values were handed over."""
        with self._lock:
            self._num_open = max(0, self._num_open - 1)
            self._adjust()

    def _adjust(self) -> None:
        """Start or end the thread, with the lock held."""
        is_needed = self._num_open > 0 and bool(self._receivers)
        if is_needed and self._thread is None:
            self._stop = threading.Event()
            self._thread = threading.Thread(
                target=self._run,
                args=(self._stop,),
                name="ringleader-metrics",
                daemon=True,
            )
            self._thread.start()
        elif not is_needed and self._thread is not None:
            thread, self._thread = self._thread, None
            self._stop.set()
            if thread is not threading.current_thread():
                thread.join(JOIN_S)

    def _run(self, stop: threading.Event) -> None:
        while not stop.is_set():
            now_s = time.monotonic()
            receivers = list(self._receivers.values())
            for each in receivers:
                if now_s >= each.next_s:
                    each.next_s = now_s + each.every_s
                    self._hand_over(each)
            next_s = min((each.next_s for each in receivers), default=now_s + EVERY_S)
            stop.wait(max(0.01, min(next_s - time.monotonic(), EVERY_S)))
        for each in list(self._receivers.values()):
            self._hand_over(each)

    def _hand_over(self, receiver: _Receiver) -> None:
        try:
            receiver.hand_over(self._registry.snapshot())
            receiver.has_failed = False
        except Exception as exc:  # noqa: BLE001 - measuring must not end a training
            if not receiver.has_failed:
                _log.warning("metrics were not handed over: %s", exc)
            receiver.has_failed = True
