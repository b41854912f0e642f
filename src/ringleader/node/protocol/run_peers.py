"""``RunPeers``: the other workers of a run, as the agent tells its worker."""

from __future__ import annotations

import msgspec

from ringleader.membership.member import Member


class RunPeer(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One life of a worker on another machine."""

    member: Member
    addresses: list[tuple[str, int]]
    """Where its control listener can be dialled, the best first."""
    name: str
    """Name of its machine."""
    has_ended: bool = False
    """The agent of its machine attests that the process has ended."""


class RunPeers(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag=True):
    """The workers of the same job on other machines. Pushed at every change."""

    others: list[RunPeer] = []
    expected: int = 1
    """Machines of the round that this worker starts with, this one included."""
    is_joiner: bool = False
    """The run had begun before this worker: it must not begin a history of its own."""
    is_over: bool = False
    """All other machines that are left have finished the run."""
