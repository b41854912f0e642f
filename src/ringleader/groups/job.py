"""Job: one operation in the queue of a group."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ringleader.deadline import Deadline
from ringleader.groups.work import Work


@dataclass(slots=True, eq=False)
class Job:
    """One operation in the queue."""

    body: Callable[[Deadline], None]
    deadline: Deadline
    work: Work
    nests: bool
    """Whether ``body`` calls further operations."""
    number: int = 0
    """Which operation of the group it is; 0 where none is ever postponed."""
    is_postponed: bool = False
    """Whether the background thread leaves it alone for a while."""
