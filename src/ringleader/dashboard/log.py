"""``ringleader.log``: numbers of a training step, for the dashboard.

Each rank appends lines of JSON to a file of its own, which the agent of its machine
reads. A script that logs every step of a fast model must not fill the disk: at most ten
lines a second are written, and the file starts anew when it is 1 MiB long.
"""

from __future__ import annotations

import atexit
import json
import math
import os
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import SupportsFloat

from ringleader.errors import ConfigError
from ringleader.settings.number_log import number_folder, number_rank

WRITE_EVERY_S = 0.1
MAX_FILE_BYTES = 1 << 20
MAX_NUMBERS = 32
MAX_NAME = 64


class NumberLog:
    """The file of one rank. Any thread may add numbers."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._values: dict[str, float | None] = {}
        self._step = 0
        self._written_step = 0
        self._written_s: float | None = None

    def add(self, numbers: Mapping[str, SupportsFloat], step: int | None) -> None:
        """Remember numbers; write them unless a line was written just now."""
        values = {name: _finite(float(value)) for name, value in numbers.items()}
        with self._lock:
            self._step = self._step + 1 if step is None else step
            self._values.update(values)
            if len(self._values) > MAX_NUMBERS or any(
                len(n) > MAX_NAME for n in values
            ):
                self._values.clear()
                text = f"at most {MAX_NUMBERS} numbers with names of {MAX_NAME} letters"
                raise ConfigError(f"ringleader.log: {text}")
            now_s = time.monotonic()
            if self._written_s is None or now_s - self._written_s >= WRITE_EVERY_S:
                self._write(now_s)

    def flush(self) -> None:
        """Write what was not written yet."""
        with self._lock:
            if self._step != self._written_step:
                self._write(time.monotonic())

    def _write(self, now_s: float) -> None:
        steps = self._step - self._written_step
        step_s = None
        if self._written_s is not None and steps > 0:
            step_s = (now_s - self._written_s) / steps
        line = {
            "time_s": time.time(),
            "step": self._step,
            "step_s": step_s,
            "values": self._values,
        }
        self._append(json.dumps(line, allow_nan=False).encode() + b"\n")
        self._written_step, self._written_s = self._step, now_s
        self._values = {}

    def _append(self, line: bytes) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
        try:
            file = os.open(self._path, flags, 0o600)
            try:
                if os.fstat(file).st_size + len(line) > MAX_FILE_BYTES:
                    os.ftruncate(file, 0)
                os.write(file, line)
            finally:
                os.close(file)
        except OSError:
            pass  # a full disk, or the job was removed: training must go on


_logs: dict[int, NumberLog | None] = {}
"""By process id: a fork has another rank, or writes nothing of its parent's."""


def log(step: int | None = None, **numbers: SupportsFloat) -> None:
    """Show numbers of this step in ``ringleader dashboard`` and ``ringleader top``.

    Call it once per step, ``ringleader.log(loss=loss, lr=0.1)``; the time between calls
    is shown as the time of a step. Steps are counted unless ``step`` is given. Does
    nothing in a script that ``ringleader run`` did not start. A tensor on a GPU is
    waited for, as by ``item()``.
    """
    log_numbers(numbers, step)


def log_numbers(numbers: Mapping[str, SupportsFloat], step: int | None = None) -> None:
    """As ``log``, for numbers of any name."""
    found = _current()
    if found is not None:
        found.add(numbers, step)


def _current() -> NumberLog | None:
    pid = os.getpid()
    if pid not in _logs:
        _logs.clear()
        folder = number_folder()
        made = None
        if folder is not None:
            made = NumberLog(folder / f"rank-{number_rank()}.jsonl")
            atexit.register(made.flush)
        _logs[pid] = made
    return _logs[pid]


def _finite(value: float) -> float | None:
    """JSON has no NaN; None stands for what is not a number, and infinities."""
    return value if math.isfinite(value) else None
