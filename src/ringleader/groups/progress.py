"""Progress: the results of a failed collective that hold their final value."""

from __future__ import annotations

from dataclasses import dataclass

from ringleader.engine.engine import Runs


@dataclass(frozen=True, slots=True)
class Progress:
    """The progress of the last collective; meant to be read after a failure."""

    call: str
    """The call as text, with its arguments."""
    count: int
    """Elements of the result on this rank."""
    complete: Runs
    """(start, stop) of the runs that hold their final value."""
