"""StateAgreement: members notice that their states differ, and make them equal again.

Members of an exact class compute equal bits. They compare a slice of their states every
few steps, by digests in the sideband. If these differ, bad memory or another library
has changed a member: all compare everything, and what most members have is kept.

Members of a mixed class drift apart in the last bits. Every few steps one of them sends
a slice of its state, which the others take.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence

from ringleader.groups.group import Group
from ringleader.training.state import scrub, state_watch
from ringleader.training.state.replicated_state import ReplicatedState
from ringleader.training.state.state_watch import DOUBT, NOTHING, slice_digest
from ringleader.training.state.transfer import repair_state
from ringleader.training.state.verdict import Repair

_log = logging.getLogger(__name__)


class StateAgreement:
    """One member's part. User's thread only.

    ``every`` are the versions between two slices that are compared.
    """

    def __init__(self, state: ReplicatedState, every: int = state_watch.EVERY) -> None:
        self._state = state.without_local()
        self._every = every
        self._is_due = False
        """All members know from the last step that states differ."""
        self._is_doubted = False
        """A difference was found, and its repair has not ended well here yet."""
        self._names: Sequence[str] = ()
        self._is_exact = True

    def enter(self, names: Sequence[str], *, is_exact: bool) -> None:
        """Set the members from now on, and whether they compute equal bits."""
        self._names, self._is_exact = names, is_exact

    def to_tell(self, version: int) -> int:
        """Return what the others are told with the step after ``version``.

        The state must be that of ``version``. Called while gradients are on their way.
        """
        if self._is_doubted:
            return DOUBT
        if not self._is_exact:
            return NOTHING
        return slice_digest(self._state, version, self._every)

    def note(self, told: Iterable[int]) -> None:
        """Take what all members told with a step that is delivered."""
        self._is_due = state_watch.is_difference(told)
        self._is_doubted = self._is_doubted or self._is_due

    def align(self, group: Group, version: int) -> None:
        """Make the states equal where they have to be; all members call it after a
        step.

        Raises errors of the group, and Expelled if this machine cannot be repaired.
        """
        if self._is_due:
            self._repair(group, version)
        if not self._is_exact and version % scrub.EVERY == 0:
            scrub.scrub(group, self._state, version // scrub.EVERY, self._names)

    def _repair(self, group: Group, version: int) -> None:
        self._is_due = False
        done = repair_state(group, self._state, names=self._names)
        self._is_doubted = False
        for text in reports(done.repaired, self._names):
            _log.warning("ringleader: step %d: %s", version, text)


def reports(repaired: Sequence[Repair], names: Sequence[str]) -> list[str]:
    """Return a sentence about each member that was repaired."""
    found: list[str] = []
    for target in sorted({repair.target for repair in repaired}):
        mine = [repair for repair in repaired if repair.target == target]
        holder, what = names[mine[0].holder], mine[0].name
        more = f" and {len(mine) - 1} more" if len(mine) > 1 else ""
        text = f"{what}{more} on {names[target]} differed from"
        text += f" {holder}" if len(names) == 2 else " most machines"
        text += f", and was copied from {holder}"
        if len(names) == 2:
            text += " (of two machines nobody can tell which one is right)"
        found.append(
            f"{text}; if it happens again, check the memory of {names[target]}"
        )
    return found
