"""Logs of a job: what each rank printed, in files of bounded size.

A log is one stream of bytes. It is kept in segments, ``rank-0.log`` and, once that is
full, ``rank-0.POSITION.log``, where POSITION is the number of bytes before it. Only the
last segments are kept. A position in a log means the same to the writer, to readers and
after a reconnection.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

SEGMENT_BYTES = 8 << 20
"""With two segments, every rank keeps between 8 and 16 MiB: days of usual output."""
KEPT_SEGMENTS = 2
_SEGMENT = re.compile(r"\A(rank-[0-9]{1,6}|launcher)(?:\.([0-9]{1,19}))?\.log\Z")


@dataclass(frozen=True, slots=True)
class Segment:
    """A file with a part of a log."""

    start: int
    path: Path

    @property
    def end(self) -> int:
        """Position after its last byte; its start if it is gone."""
        try:
            return self.start + self.path.stat().st_size
        except OSError:
            return self.start


def find_logs(folder: Path) -> dict[str, list[Segment]]:
    """Return the segments of all logs in ``folder``, each log's oldest first."""
    found: dict[str, list[Segment]] = {}
    for path in _files(folder):
        if match := _SEGMENT.match(path.name):
            segment = Segment(int(match[2] or 0), path)
            found.setdefault(match[1], []).append(segment)
    return {name: sorted(found[name], key=lambda s: s.start) for name in sorted(found)}


def _files(folder: Path) -> Iterator[Path]:
    try:
        with os.scandir(folder) as entries:
            yield from (Path(entry.path) for entry in entries if entry.is_file())
    except FileNotFoundError:
        return


def read_log(segments: list[Segment], position: int, most: int) -> tuple[int, bytes]:
    """Return at most ``most`` bytes of a log and where they begin.

    They begin at ``position`` or, if that was dropped, at the first byte that is kept.
    """
    for segment in segments:
        begin = max(position, segment.start)
        if begin >= segment.end:
            continue
        try:
            with segment.path.open("rb") as file:
                file.seek(begin - segment.start)
                data = file.read(most)
        except OSError:
            continue  # dropped meanwhile
        if data:
            return begin, data
    return position, b""


def tail_position(segments: list[Segment], tail_bytes: int) -> int:
    """Return where the last ``tail_bytes`` of a log begin."""
    return max(0, segments[-1].end - tail_bytes) if segments else 0


@dataclass(slots=True)
class LogWriter:
    """Appends to one log. A full disk loses output, not the job."""

    folder: Path
    name: str
    segment_bytes: int = SEGMENT_BYTES
    lost_bytes: int = 0
    _segment: Segment | None = field(default=None, init=False)

    def write(self, data: bytes) -> None:
        """Append; begins a new segment when the last one is full."""
        segment = self._segment or self._last()
        if segment.end - segment.start >= self.segment_bytes:
            segment = Segment(
                segment.end, self.folder / f"{self.name}.{segment.end}.log"
            )
        self._segment = segment
        try:
            with open(segment.path, "ab", opener=_open_private) as file:
                file.write(data)
        except OSError:
            self.lost_bytes += len(data)
        self._drop_old()

    def _last(self) -> Segment:
        found = find_logs(self.folder).get(self.name)
        return found[-1] if found else Segment(0, self.folder / f"{self.name}.log")

    def _drop_old(self) -> None:
        if self._segment is None or self._segment.start == 0:
            return
        for old in find_logs(self.folder).get(self.name, [])[:-KEPT_SEGMENTS]:
            old.path.unlink(missing_ok=True)


def _open_private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)
