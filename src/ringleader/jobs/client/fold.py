"""``ConsequenceFold``: shows why a job failed before what followed from it.

When one rank fails, all others raise that they have lost it: dozens of lines that say
nothing new, and often come first. Tracebacks of such errors are held back. At the end a
line says whose they were; if there is no other error, the first of them is shown.

Bytes of ranks in, bytes to show out; no effects.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from ringleader.jobs.client.output_view import Source
from ringleader.node.launch.failure_report import is_consequence

MAX_HELD_BYTES = 64 << 10
"""A longer traceback is shown: it is rather something else."""
_HEADER = b"Traceback (most recent call last):"
_RANK = re.compile(rb"\[rank\d+\]: ?")
"""torch begins each line of a traceback so."""
_ERROR = re.compile(rb"([A-Za-z_][\w.]*)(: .*|:?)\r?\n")
"""The last line of a traceback."""
_CHAIN = (
    b"During handling of the above exception, another exception occurred:",
    b"The above exception was the direct cause of the following exception:",
)
_LONGEST_START = len(b"[rank100000]: ") + len(_HEADER)

Piece = tuple[Source, bytes]


@dataclass(slots=True)
class _Held:
    """The output of one rank since a traceback began."""

    data: bytes = b""
    kind: str = ""
    """Name of its first error, which is a consequence; empty before it is known."""
    is_open: bool = True
    """Whether its last lines are inside of a traceback."""


@dataclass(slots=True)
class _Rank:
    line: bytes = b""
    """The beginning of a line that may become that of a traceback."""
    is_inside_line: bool = False
    """Whether the beginning of the present line was shown."""
    held: _Held | None = None


@dataclass(slots=True)
class ConsequenceFold:
    """Holds back consequences; ``job`` is named for those who want all."""

    job: str
    _ranks: dict[Source, _Rank] = field(default_factory=dict)
    _has_cause: bool = False
    """Whether an error that is no consequence was shown."""

    def feed(self, source: Source, data: bytes) -> Iterator[Piece]:
        """Yield what to show after ``source`` has printed ``data``."""
        rank = self._ranks.setdefault(source, _Rank())
        *lines, rest = (rank.line + data).split(b"\n")
        rank.line = b""
        shown = b"".join(self._take(source, rank, line + b"\n") for line in lines)
        if rank.held is not None or (not rank.is_inside_line and _may_begin(rest)):
            rank.line = rest
        elif rest:
            rank.is_inside_line = True
            shown += rest
        if shown:
            yield source, shown

    def finish(self) -> Iterator[Piece]:
        """Yield what is left, when nobody prints any more."""
        folded: list[tuple[Source, _Held]] = []
        for source, rank in self._ranks.items():
            if rank.held is not None and rank.held.kind:
                rank.held.data += rank.line
                folded.append((source, rank.held))
            else:
                data = (rank.held.data if rank.held else b"") + rank.line
                if data:
                    yield source, data
        self._ranks.clear()
        if folded and not self._has_cause:
            (source, first), *folded = folded
            yield source, first.data
        for source, held in folded:
            yield source, self._line(held)

    def _line(self, held: _Held) -> bytes:
        number = held.data.count(b"\n")
        text = (
            f"{held.kind}, in consequence ({number} lines: ringleader logs {self.job})"
        )
        return f"{text}\n".encode()

    def _take(self, source: Source, rank: _Rank, line: bytes) -> bytes:
        """Take a whole line; return what to show now."""
        held = rank.held
        if held is None:
            is_header = not rank.is_inside_line and _plain(line).startswith(_HEADER)
            rank.is_inside_line = False
            if not is_header:
                return line
            rank.held = _Held(line)
            return b""
        text = _plain(line)
        if not held.is_open and not _continues(text):
            rank.held = None  # the program goes on, or was started again
            before = self._line(held) if self._has_cause else held.data
            return before + self._take(source, rank, line)
        held.data += line
        if text.startswith(_HEADER):
            held.is_open = True
        elif held.is_open and not text.startswith((b" ", b"\n", b"\r")):
            held.is_open = False
            error = _ERROR.fullmatch(text)
            name = error[1].decode(errors="replace").rpartition(".")[2] if error else ""
            said = text.decode(errors="replace").strip()
            if not held.kind and not is_consequence(name, said):
                self._has_cause = True
                return self._release(rank)
            held.kind = held.kind or name
        return self._release(rank) if len(held.data) > MAX_HELD_BYTES else b""

    def _release(self, rank: _Rank) -> bytes:
        assert rank.held is not None, "there is something to release"
        data, rank.held = rank.held.data, None
        return data


def _plain(line: bytes) -> bytes:
    found = _RANK.match(line)
    return line[found.end() :] if found else line


def _continues(text: bytes) -> bool:
    """Return whether a line may follow the last one of a traceback and belong to it."""
    return not text.strip() or text.startswith((_HEADER, *_CHAIN))


def _may_begin(part: bytes) -> bool:
    """Return whether the beginning of a line may become that of a traceback."""
    if not part or len(part) > _LONGEST_START:
        return False
    plain = _plain(part)
    return (
        _HEADER.startswith(plain)
        or re.fullmatch(rb"\[(r(a(n(k\d*\]?:?)?)?)?)?", part) is not None
    )
