"""``choose_machines``: which machines of the cluster run a job. Pure functions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ringleader.errors import ConfigError
from ringleader.ids import NodeId, short, tell_apart
from ringleader.jobs.protocol.job_spec import JobMachine
from ringleader.node.protocol.snapshot import NodeRow, Snapshot

DEAD = "dead"


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What the user said about the machines of a job."""

    nodes: int | None = None
    """How many; None: all."""
    on: Sequence[str] = ()
    """Names or ids of those that run it; empty: any."""
    without: Sequence[str] = ()
    """Names or ids of those that do not."""
    rank0: str = ""
    """Name or id of the machine that has rank 0; empty: this one, if it takes part."""


def all_machines(snapshot: Snapshot) -> list[JobMachine]:
    """Return the machines that are up: this one, then the others in ring order."""
    rows = [row for row in snapshot.nodes if row.is_here or _is_up(row)]
    names = tell_apart({NodeId(row.node): row.name for row in rows})
    place = {node: number for number, node in enumerate(snapshot.ring)}
    rows.sort(key=lambda row: (not row.is_here, place.get(row.node, len(place))))
    return [JobMachine(NodeId(r.node), names[NodeId(r.node)]) for r in rows]


def choose_machines(snapshot: Snapshot, wanted: Wanted) -> list[JobMachine]:
    """Return the machines that run a job; the first one has rank 0.

    That is this machine, if it takes part: also without a permission for jobs of
    others, as it is its user who asks. Raises ``ConfigError`` if there are too few, or
    none of a name.
    """
    up = all_machines(snapshot)
    here = snapshot.node
    accepting = {row.node for row in snapshot.nodes if row.accepts_jobs} | {here}
    excluded = {find_machine(name, up, "--not").node for name in wanted.without}
    if wanted.on:
        named = [find_machine(name, up, "--on") for name in wanted.on]
        chosen = list(dict.fromkeys(named))
        for machine in chosen:
            if machine.node not in accepting:
                raise ConfigError(f"--on {machine.name}: {_refusal(machine)}")
    else:
        chosen = [machine for machine in up if machine.node in accepting]
    chosen = [machine for machine in chosen if machine.node not in excluded]
    chosen.sort(key=lambda machine: machine.node != here)
    if (wanted.nodes is not None and len(chosen) < wanted.nodes) or not chosen:
        raise ConfigError(_too_few(chosen, up, wanted))
    return chosen[: wanted.nodes]


def idle_machines(
    snapshot: Snapshot, chosen: Sequence[JobMachine], wanted: Wanted
) -> list[str]:
    """Return sentences about machines that are up and stay out of the job."""
    if wanted.on or wanted.nodes is not None:
        return []
    accepting = {row.node for row in snapshot.nodes if row.accepts_jobs}
    left = [m for m in all_machines(snapshot) if m not in chosen]
    return [f"{m.name} {_refusal(m)}" for m in left if m.node not in accepting]


def _is_up(row: NodeRow) -> bool:
    return row.in_view and row.health != DEAD


def _refusal(machine: JobMachine) -> str:
    return f"takes no jobs; allow them on {machine.name} with: ringleader up --jobs"


def find_machine(name: str, up: Sequence[JobMachine], option: str) -> JobMachine:
    """Return the machine of a name, or of the beginning of an id."""
    plain = name.replace("-", "")
    found = [m for m in up if name in (m.name, m.name.partition(" (")[0])] or [
        m for m in up if len(plain) >= 4 and m.node.startswith(plain)
    ]
    if len(found) == 1:
        return found[0]
    names = ", ".join(m.name for m in up)
    if not found:
        raise ConfigError(f"{option} {name}: no such machine is up; there are {names}")
    ids = ", ".join(short(m.node) for m in found)
    raise ConfigError(f"{option} {name}: several have this name; give an id: {ids}")


def _too_few(
    chosen: Sequence[JobMachine], up: Sequence[JobMachine], wanted: Wanted
) -> str:
    names = ", ".join(m.name for m in chosen)
    here = f"{len(chosen)} ({names})" if chosen else "none"
    need = f"--nodes {wanted.nodes}: " if wanted.nodes is not None else ""
    text = f"{need}of {len(up)} machines that are up, {here} can run this job"
    hint = "start the others, and allow jobs there, with: ringleader up --jobs"
    return f"{text}; {hint}. Or type the command on every machine, with --here"
