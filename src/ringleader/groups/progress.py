"""How far a collective came that failed: which results hold their final value."""

from __future__ import annotations

from dataclasses import dataclass

from ringleader.engine.engine import Runs


@dataclass(frozen=True, slots=True)
class Progress:
    """How far the last collective came; meant to be read after a failure."""

    call: str
    """The call as text, with its arguments."""
    count: int
    """Elements of the result on this rank."""
    complete: Runs
    """(start, stop) of the runs that hold their final value."""
