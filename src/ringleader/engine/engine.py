"""The interface of the engines, and what they have in common."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from ringleader.engine.arrays_by_address import Addresses
from ringleader.engine.call import Call

Runs = tuple[tuple[int, int], ...]
"""(start, stop) of runs of elements in the result."""
NextHeader = Callable[[], bytes]
"""Begins the next operation of the group and returns its header."""
Prepared = Callable[[Addresses], None]
"""Does one call on the tensors at these addresses."""
Finish = Callable[[], None]
"""Does the rest of a call that has begun; it may wait."""
Start = Callable[[Addresses], Finish | None]
"""Begins a call, waiting no longer than a peer that keeps step needs; returns the rest
of it, None if it has ended."""


@dataclass(frozen=True, slots=True, eq=False)
class Forms:
    """Functions that do calls of one kind, with everything looked up already."""

    run: Prepared
    start: Start | None = None
    """None if such a call cannot be interrupted."""


class Engine(Protocol):
    """Runs the calls of one group, one at a time. Engines divide their own means."""

    def run(self, call: Call, header: bytes) -> None:
        """Do ``call``. An exception leaves the engine unusable."""
        ...

    def prepare(self, call: Call, next_header: NextHeader) -> Forms | None:
        """Functions that do calls like ``call``.

        None if the general path costs little more. ``next_header`` numbers each run.
        """
        ...

    def progress(self, call: Call) -> Runs:
        """The runs of the result of ``call``, the last one, that are final."""
        ...


class HeaderMismatch(Exception):
    """``peer`` opened an operation with another header than the expected one."""

    def __init__(self, peer: int, theirs: bytes, expected: bytes) -> None:
        super().__init__(peer, theirs, expected)
        self.peer = peer
        self.theirs = theirs
        self.expected = expected
