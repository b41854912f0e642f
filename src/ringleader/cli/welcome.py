"""What ``ringleader`` without a command says: what to type next, by what is here."""

from __future__ import annotations

from dataclasses import dataclass

import typer

from ringleader import settings
from ringleader.errors import RingleaderError


@dataclass(frozen=True, slots=True, kw_only=True)
class Situation:
    """What a newcomer has reached."""

    cluster: str = ""
    """Title of the cluster; empty: none."""
    is_up: bool = False
    """Whether an agent runs on this machine."""
    others: tuple[str, ...] = ()
    """Names of the other machines that are up."""
    refusing: tuple[str, ...] = ()
    """Names of the machines, this one included, that take no jobs."""
    jobs: tuple[str, ...] = ()
    """Jobs that run or wait on any of them."""
    troubles: tuple[str, ...] = ()


def print_welcome() -> None:
    """Look at this machine and print what to type next; never fails."""
    try:
        found = _look()
    except RingleaderError as exc:
        typer.echo(f"ringleader: {exc}", err=True)
        raise typer.Exit(1) from None
    typer.echo(advise(found))


def _look() -> Situation:
    # Imported here: a newcomer without a cluster needs none of it.
    from ringleader.identity import cluster_secret
    from ringleader.identity.storage.home import Home

    home = settings.home_directory()
    cluster = cluster_secret.load(Home(home))
    if cluster is None:
        return Situation()
    from ringleader.node.peering.status_query import query_local_agents

    reports = query_local_agents(home)
    if not reports:
        return Situation(cluster=cluster.title)
    seen = next((r.snapshot for r in reports if r.snapshot.is_resident), None)
    seen = seen or reports[0].snapshot
    rows = [row for row in seen.nodes if row.in_view]
    return Situation(
        cluster=seen.cluster,
        is_up=True,
        others=tuple(row.name for row in rows if not row.is_here),
        refusing=tuple(row.name for row in rows if not row.accepts_jobs),
        jobs=tuple(sorted({job for row in rows for job in row.jobs})),
        troubles=tuple(seen.troubles),
    )


def advise(found: Situation) -> str:
    """Return what to type next. Pure."""
    if not found.cluster:
        first = "This machine is in no cluster yet."
        steps = {
            "ringleader init": "on the first machine: makes a cluster",
            "ringleader join": "on every other machine",
            "ringleader demo": "to see it train on this machine alone",
        }
    elif not found.is_up:
        first = f"This machine is in cluster {found.cluster}, but not up."
        steps = {
            "ringleader up": "on every machine: finds the others and stays",
            "ringleader invite": "to let one more machine join by a PIN",
        }
    elif found.jobs:
        first = f"{_machines(found)} Running: {', '.join(found.jobs)}."
        steps = {
            "ringleader jobs": "to see them; then logs, attach and stop",
            "ringleader top": "to watch machines and jobs here",
            "ringleader dashboard": "to watch them in a browser",
        }
    elif found.others:
        first = _machines(found)
        refusing = ", ".join(found.refusing)
        steps = {"ringleader up --jobs": f"on {refusing}: takes part in jobs"}
        steps = (steps if refusing else {}) | {
            "ringleader run train.py": "to train on all of them",
            "ringleader status": "to see the machines and their links",
            "ringleader dashboard": "to watch them in a browser",
        }
    else:
        first = f"This machine is up in cluster {found.cluster}, alone."
        steps = {
            "ringleader up": "on the other machines",
            "ringleader invite": "to let one more machine join by a PIN",
            "ringleader doctor": "if others are up and do not appear",
        }
    width = max(len(command) for command in steps)
    lines = [f"  {command:<{width}}   {why}" for command, why in steps.items()]
    troubles = [f"! {each}" for each in found.troubles]
    last = "All commands: ringleader --help"
    return "\n".join([first, *troubles, "", *lines, "", last])


def _machines(found: Situation) -> str:
    names = ", ".join(found.others)
    if not found.others:
        return f"This machine is up in cluster {found.cluster}, alone."
    return f"This machine is up in cluster {found.cluster}, with {names}."
