"""StepPlan: what all members of a new view do first."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ringleader.membership.member import Member, ViewId
from ringleader.membership.steps.attempt import Attempt


@dataclass(frozen=True, slots=True)
class Gather:
    """Complete this attempt: each bucket is sent by its holder to all that lack it."""

    attempt: Attempt
    holders: tuple[Member, ...]
    """Holders of buckets 0, 1, ...: of each the first in ring order that has it."""


@dataclass(frozen=True, slots=True)
class Reduce:
    """Reduce the next step from the retained contributions; nothing to complete."""


@dataclass(frozen=True, slots=True)
class StepPlan:
    """The same on all members of a view: a pure function of its payloads."""

    lineage: str
    is_fork: bool
    """True if the lineage got its name in this view, because the old name may be in use
    elsewhere."""

    version: int
    """Version of all members when the plan is done. The first attempt of the view makes
    ``version + 1``."""

    chain: bytes
    chain_before: bytes
    last: Attempt | None
    """Chain and last attempt at ``version``."""

    action: Gather | Reduce
    sources: tuple[Member, ...]
    """Members that have the state, or will have it after the gather; ring order."""

    adopt: frozenset[Member]
    """Members that take the state of a source, after the gather if there is one."""

    void: frozenset[Member]
    """Members whose contribution to the next step is dropped: others have computed the
    same quanta."""

    quanta: Mapping[Member, tuple[int, ...]] = field(default_factory=dict)
    """Quanta of step ``version + 1`` that stay where they are. All others are to be
    assigned."""

    samples: int = 0
    """Samples delivered before the gather, if there is one."""

    ruled_out: frozenset[ViewId] = frozenset()
    """Promised views that are known to be in force nowhere."""

    pause_reason: str = ""
    """Why this view does nothing: it keeps its state and waits for another view."""

    lacks_state: bool = False
    """True if this view does nothing because no member has a complete state."""

    @property
    def is_paused(self) -> bool:
        """True if this view must not train."""
        return bool(self.pause_reason)
