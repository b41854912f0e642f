"""Reads the numbers that workers of this machine have logged.

The files belong to programs of the user, so their content is checked and bounded.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from ringleader.dashboard.log import MAX_FILE_BYTES, MAX_NAME, MAX_NUMBERS

MAX_LINE_BYTES = 4096
MAX_RANKS = 64
"""Ranks of one job on one machine that are read."""
MAX_POINTS = 200
"""Lines of a file that one call returns, the newest."""
_RANK_FILE = re.compile(r"rank-(\d{1,5})\.jsonl")


@dataclass(frozen=True, slots=True)
class NumberPoint:
    """What a rank logged at one step."""

    time_s: float
    step: int
    step_s: float | None
    values: dict[str, float | None]
    """None is a value that is not a finite number."""


@dataclass(slots=True)
class NumberFolder:
    """The files of one job; ``read`` returns what is new since the last call."""

    path: Path
    _offsets: dict[int, int] = field(default_factory=dict)

    def read(self) -> dict[int, list[NumberPoint]]:
        """Return the new points of each rank that has any."""
        found = {}
        for rank, path in self._files():
            points = list(self._read_file(rank, path))[-MAX_POINTS:]
            if points:
                found[rank] = points
        return found

    def _files(self) -> list[tuple[int, Path]]:
        found = []
        with contextlib.suppress(OSError):
            for path in self.path.iterdir():
                match = _RANK_FILE.fullmatch(path.name)
                if match:
                    found.append((int(match[1]), path))
        return sorted(found)[:MAX_RANKS]

    def _read_file(self, rank: int, path: Path) -> Iterator[NumberPoint]:
        offset = self._offsets.get(rank, 0)
        try:
            with path.open("rb") as file:
                size = os.fstat(file.fileno()).st_size
                if size < offset:  # it started anew
                    offset = 0
                file.seek(offset)
                data = file.read(2 * MAX_FILE_BYTES)
        except OSError:
            return
        whole = data[: data.rfind(b"\n") + 1]
        self._offsets[rank] = offset + len(whole)
        for line in whole.splitlines()[-MAX_POINTS:]:
            point = parse_point(line)
            if point is not None:
                yield point


def parse_point(line: bytes) -> NumberPoint | None:
    """Return what a line holds; None if it is not one of ``ringleader.log``."""
    if len(line) > MAX_LINE_BYTES:
        return None
    try:
        found = json.loads(line)
        values = found["values"]
        step, step_s = found["step"], found["step_s"]
        is_valid = (
            isinstance(step, int)
            and abs(step) < 1 << 53
            and (step_s is None or _is_number(step_s))
            and _is_number(found["time_s"])
            and len(values) <= MAX_NUMBERS
            and all(len(name) <= MAX_NAME for name in values)
            and all(each is None or _is_number(each) for each in values.values())
        )
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return None
    if not is_valid:
        return None
    return NumberPoint(found["time_s"], step, step_s, values)


def _is_number(value: object) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return math.isfinite(value)
