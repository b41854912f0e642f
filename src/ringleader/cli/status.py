"""``ringleader status``: shows nodes, leader, health, links and the latest events."""

from __future__ import annotations

import json
import time
from typing import Annotated

import typer
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from ringleader import settings
from ringleader.cli import units
from ringleader.errors import RingleaderError
from ringleader.ids import NodeId, short
from ringleader.node.peering.status_query import StatusReport, query_status
from ringleader.node.protocol.snapshot import NodeRow, Snapshot

_COLOURS = {"healthy": "green", "suspect": "yellow", "dead": "red"}
_EVERY_S = 1.0
_CLOCK_S = 2.0
"""Smaller clock differences are not shown."""
_NUM_EVENTS = 5
"""Events shown as text; ``--json`` has all that the agent keeps."""


def status(
    watch: Annotated[
        bool, typer.Option("--watch", help="Refresh every second until Ctrl-C.")
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print JSON on standard output.")
    ] = False,
    mlx: Annotated[
        bool, typer.Option("--mlx", help="Print the ring as a hostfile for mlx.launch.")
    ] = False,
) -> None:
    """Show the nodes of the cluster, their health, links, and the latest events.

    Asks the agents of this machine or, if none runs here, one on the
    network. Exits with 3 if none answers; 'ringleader doctor' tells why.
    """
    console = Console()
    errors = Console(stderr=True)
    try:
        if watch and not as_json:
            _watch(console)
            return
        reports = query_status(settings.home_directory())
    except RingleaderError as exc:
        errors.print(f"ringleader status: {exc}", style="bold red", markup=False)
        raise typer.Exit(1) from exc
    except KeyboardInterrupt as exc:
        raise typer.Exit(130) from exc
    if mlx:
        typer.echo(reports[0].snapshot.mlx if reports else "")
    elif as_json:
        typer.echo(json.dumps([_as_dict(report) for report in reports], indent=1))
    else:
        console.print(_render(reports))
    if not reports:
        raise typer.Exit(3)


def _watch(console: Console) -> None:
    from rich.live import Live

    home = settings.home_directory()
    with Live(_render(query_status(home)), console=console, auto_refresh=False) as live:
        while True:
            time.sleep(_EVERY_S)
            live.update(_render(query_status(home)), refresh=True)


def _as_dict(report: StatusReport) -> dict[str, object]:
    return {"from": report.source, **report.snapshot.plain()}


def _render(reports: list[StatusReport]) -> RenderableType:
    if not reports:
        return Text(
            "No node of this cluster runs here or answers on the network.\n"
            "Start one with: ringleader run --nodes 2 train.py\n"
            "If one runs on another machine: ringleader doctor"
        )
    return Group(*(part for report in reports for part in _parts(report)))


def _parts(report: StatusReport) -> list[RenderableType]:
    snapshot = report.snapshot
    leader = next((row.name for row in snapshot.nodes if row.is_leader), "none")
    title = (
        f"cluster {snapshot.cluster}   epoch {snapshot.epoch}   leader {leader}   "
        f"(seen from {report.source})"
    )
    parts: list[RenderableType] = [
        Text(title, style="bold"),
        _health(snapshot),
        _nodes(snapshot),
    ]
    if len(snapshot.ring) > 1:
        parts.append(_links(snapshot))
    parts += [Text(f"! {trouble}", style="yellow") for trouble in snapshot.troubles]
    if snapshot.events:
        parts.append(_events(snapshot))
    return parts


def _health(snapshot: Snapshot) -> Text:
    """Return one line about the other nodes: a percentage and how many of each kind."""
    counts = snapshot.health
    if not counts.total:
        return Text("health: no other node is known yet", style="dim")
    kinds = {
        "healthy": counts.healthy,
        "suspect": counts.suspect,
        "dead": counts.dead,
        "unknown": counts.unknown,
    }
    listed = ", ".join(f"{number} {kind}" for kind, number in kinds.items() if number)
    text = f"health: {counts.percentage:.0f} % of {counts.total} other "
    text += f"node{'s' * (counts.total != 1)} ({listed})"
    is_good = counts.healthy == counts.total
    return Text(text, style="green" if is_good else "yellow")


def _events(snapshot: Snapshot) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column("time")
    table.add_column("event")
    for event in snapshot.events[-_NUM_EVENTS:]:
        clock = time.strftime("%H:%M:%S", time.localtime(event.time_s))
        style = "yellow" if event.kind in ("split", "clone", "lost") else ""
        table.add_row(clock, Text(event.text, style=style))
    return table


def _nodes(snapshot: Snapshot) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    for column in ("node", "id", "health", "device", "cores", "memory", "address"):
        table.add_column(column)
    for column in ("latency", "job"):
        table.add_column(column)
    for row in sorted(snapshot.nodes, key=lambda row: _ring_index(snapshot, row)):
        health = Text(row.health, style=_COLOURS.get(row.health, ""))
        name = Text(row.name + (" *" if row.is_leader else ""))
        if row.is_here:
            name.stylize("bold")
        table.add_row(
            name,
            short(NodeId(row.node)),
            health if row.in_view else Text(f"{row.health}, not in view"),
            *(Text(cell) for cell in _machine(row)),
            row.address or "-",
            "here" if row.is_here else _time(row.latency_s),
            Text(", ".join(row.jobs) or "-"),
        )
    return table


def _ring_index(snapshot: Snapshot, row: NodeRow) -> int:
    ring = snapshot.ring
    return ring.index(row.node) if row.node in ring else len(ring)


def _machine(row: NodeRow) -> tuple[str, str, str]:
    if row.profile is None:
        return "?", "?", "?"
    profile = row.profile
    device = profile.accelerators[0].name if profile.accelerators else profile.chip
    memory = units.format_bytes(profile.total_ram_bytes)
    return device[:32], str(profile.physical_cores), memory


def _links(snapshot: Snapshot) -> Table:
    """Return one row per hop of the ring, the links that an all-reduce uses."""
    table = Table(box=None, pad_edge=False, header_style="dim")
    for column in ("link", "latency", "there", "back", "clocks"):
        table.add_column(column)
    rows = {row.node: row for row in snapshot.nodes}
    ring = snapshot.ring
    hops = list(zip(ring, [*ring[1:], ring[0]], strict=True))
    for source, to in hops[: 1 if len(hops) == 2 else None]:
        if source in rows and to in rows:
            name = f"{rows[source].name} -> {rows[to].name}"
            table.add_row(Text(name), *_link(rows[source], rows[to]))
    return table


def _link(source: NodeRow, to: NodeRow) -> tuple[str, ...]:
    """Return latency, both rates and the clock, as either end has measured them."""
    if source.host and source.host == to.host:
        return "shared memory", "", "", _clock(to)
    link = source.links.get(to.node)
    back = to.links.get(source.node)
    link = link or (back.mirrored() if back else None)
    if link is None:
        return "not measured yet", "", "", _clock(to)
    return (
        _time(link.latency_s),
        f"{units.format_bytes(int(link.out_bytes_per_s))}/s",
        f"{units.format_bytes(int(link.in_bytes_per_s))}/s",
        _clock(to),
    )


def _time(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds * 1000:.2f} ms"


def _clock(row: NodeRow) -> str:
    ahead_s = row.clock_ahead_s
    if ahead_s is None or abs(ahead_s) < _CLOCK_S:
        return ""
    return f"clock {abs(ahead_s):.0f} s {'ahead' if ahead_s > 0 else 'behind'}"
