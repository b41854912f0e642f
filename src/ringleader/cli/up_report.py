"""What ``ringleader up`` says about the agent that is up. Pure."""

from __future__ import annotations

import getpass
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ringleader.ids import NodeId, short

if TYPE_CHECKING:  # slow to import; --help needs none of them
    from ringleader.node.protocol.resident_record import ResidentRecord
    from ringleader.node.protocol.snapshot import NodeRow, Snapshot


def describe(
    seen: Snapshot, *, is_new: bool, warmth: str = "", jobs: Sequence[str] = ()
) -> str:
    """Return the cluster, who is in it, and what this machine allows.

    ``warmth`` is the sentence of that name, if there is one; ``jobs`` are lines about
    jobs that run here although they are refused now.
    """
    here = next(row for row in seen.nodes if row.is_here)
    others = [row for row in seen.nodes if row.in_view and not row.is_here]
    state = "Up" if is_new else "Already up"
    where = f"{here.name} ({short(NodeId(here.node))}) at {here.address}"
    lines = [
        f"{state}: {where} in cluster {seen.cluster}, process {seen.pid}.",
        _others(others),
        allows(seen.cluster, accepts_jobs=here.accepts_jobs),
        *jobs,
        *([warmth] if warmth else []),
        "It ends with: ringleader down",
    ]
    lines += [f"! {each}" for each in seen.troubles]
    return "\n".join(lines)


def warmth(record: ResidentRecord) -> str:
    """Return in one sentence whether runs start sooner here; empty without --warm."""
    if record.warm:
        return "Warm: runs on this machine are forks of a process that has torch."
    if record.config.warm:
        text = "Not warm yet: a process imports torch, which takes a few seconds."
        return f"{text} Until then runs start as usual."
    return ""


def _others(others: list[NodeRow]) -> str:
    if not others:
        text = "No other machine of the cluster is up yet: run 'ringleader up' there."
        return f"{text} If one is: ringleader doctor"
    listed = ", ".join(
        f"{row.name}{' (accepts jobs)' if row.accepts_jobs else ''}" for row in others
    )
    number = "1 other machine" if len(others) == 1 else f"{len(others)} other machines"
    return f"{number}: {listed}."


def allows(cluster: str, *, accepts_jobs: bool) -> str:
    """Return in one sentence what other machines may do here."""
    if not accepts_jobs:
        text = "Jobs are refused: other machines cannot run programs here."
        return f"{text} To allow it: ringleader up --jobs"
    text = f"Jobs are allowed: any machine of cluster {cluster} may run programs as"
    return f"{text} {getpass.getuser()} here. To refuse: ringleader up --no-jobs"
