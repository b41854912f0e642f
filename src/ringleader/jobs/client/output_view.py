"""Views of a job's output: bytes of all ranks in, text for a pipe or a terminal out.

Every line begins with the machine and the rank. In a terminal the unfinished line of
one rank stays at the bottom, so that its progress bar moves while others print. No
effects.
"""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from dataclasses import dataclass, field

MAX_LINE = 64 << 10
"""A longer line is cut into several: a program may print without ever ending one."""
COLOURS = (36, 33, 35, 32, 34, 91, 96, 93, 95, 92)
_CLEAR = "\r\x1b[K"


@dataclass(frozen=True, slots=True)
class Source:
    """The rank that printed a line, and its machine."""

    machine: str
    rank: int

    @property
    def label(self) -> str:
        """What its lines begin with."""
        return f"{self.machine}:{self.rank}"


@dataclass(slots=True)
class _Line:
    """The unfinished line of a source."""

    decoder: codecs.IncrementalDecoder = field(
        default_factory=lambda: codecs.getincrementaldecoder("utf-8")("replace")
    )
    text: str = ""

    def add(self, data: bytes) -> list[str]:
        """Return the lines that are complete now."""
        *lines, self.text = (self.text + self.decoder.decode(data)).split("\n")
        lines = [visible(line) for line in lines]
        if len(self.text) > MAX_LINE:
            last = visible(self.text)
            if len(last) > MAX_LINE:
                lines, self.text = [*lines, last], ""
            else:
                self.text = last  # a progress bar: only its last state matters
        return lines


def visible(line: str) -> str:
    """Return what a terminal shows of a line after its carriage returns."""
    return line.rstrip("\r").rpartition("\r")[2]


@dataclass(slots=True)
class PlainView:
    """Lines for a pipe or a file."""

    width: int = 0
    """Width of the labels; grows with the longest."""
    _lines: dict[Source, _Line] = field(default_factory=dict)

    def feed(self, source: Source, data: bytes) -> str:
        """Return what to write after ``source`` has printed ``data``."""
        lines = self._lines.setdefault(source, _Line()).add(data)
        return "".join(f"{self.prefix(source)}{line}\n" for line in lines)

    def finish(self) -> str:
        """Return the lines that were never completed."""
        rest = {source: visible(line.text) for source, line in self._lines.items()}
        self._lines.clear()
        return "".join(f"{self.prefix(s)}{text}\n" for s, text in rest.items() if text)

    def note(self, text: str) -> str:
        """Return a line of our own, among those of the ranks."""
        return f"{text}\n"

    def prefix(self, source: Source) -> str:
        """Return the beginning of each line of ``source``."""
        self.width = max(self.width, len(source.label))
        return f"{source.label:<{self.width}} | "


@dataclass(slots=True)
class TerminalView(PlainView):
    """Lines for a terminal, with colours and one line that moves."""

    columns: int = 80
    machines: Sequence[str] = ()
    """Each has a colour of its own, in this order."""
    live_rank: int = 0
    """Its unfinished line is shown at the bottom."""
    _shown: str = ""

    def feed(self, source: Source, data: bytes) -> str:
        """Return what to write after ``source`` has printed ``data``."""
        lines = PlainView.feed(self, source, data)
        if source.rank == self.live_rank:
            self._update(source)
        elif not lines:
            return ""
        return f"{_CLEAR}{lines}{self._shown}"

    def finish(self) -> str:
        """Return the lines that were never completed."""
        self._shown = ""
        return _CLEAR + PlainView.finish(self)

    def note(self, text: str) -> str:
        """Return a line of our own, above the one that moves."""
        return f"{_CLEAR}{text}\n{self._shown}"

    def prefix(self, source: Source) -> str:
        """Return the beginning of each line of ``source``, in its machine's colour."""
        plain = PlainView.prefix(self, source)
        try:
            number = self.machines.index(source.machine)
        except ValueError:
            number = 0
        return f"\x1b[{COLOURS[number % len(COLOURS)]}m{plain}\x1b[0m"

    def _update(self, source: Source) -> None:
        text = visible(self._lines[source].text)
        prefix = self.prefix(source)
        room = self.columns - self.width - len(" | ") - 1
        self._shown = f"{prefix}{text[: max(1, room)]}" if text else ""


def terminal_room(columns: int, machines: Sequence[str]) -> int:
    """Return the columns that are left for rank 0 beside its label."""
    longest = max((len(name) for name in machines), default=0)
    return max(20, columns - longest - len(":0 | ") - 1)
