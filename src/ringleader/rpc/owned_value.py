"""A value that is kept for other ranks, and the numbers of those that were."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from ringleader.rpc.messages import Failure


@dataclass(slots=True, eq=False)
class OwnedValue:
    """A value that this process keeps for others."""

    holders: dict[int, int] = field(default_factory=dict)
    """rank -> how often it has said Add and not Drop."""
    is_created: bool = False
    """False as long as only others than the creator have mentioned it."""
    is_ready: bool = False
    value: object = None
    failure: Failure | None = None
    """Why there is no value."""
    waiting: list[Callable[[], None]] = field(default_factory=list)

    def is_in_use(self) -> bool:
        """Return whether a rank holds it, or waits for it before it is created."""
        return bool(self.holders or (self.waiting and not self.is_created))


class Numbers:
    """A set of numbers from 1 on, in little memory if few are missing."""

    def __init__(self) -> None:
        self._below = 1
        self._beyond: set[int] = set()

    def add(self, number: int) -> None:
        """Add a number."""
        self._beyond.add(number)
        while self._below in self._beyond:
            self._beyond.discard(self._below)
            self._below += 1

    def __contains__(self, number: int) -> bool:
        return number < self._below or number in self._beyond
