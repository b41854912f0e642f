"""``ringleader status``: who is here, how they are, how fast the links are."""

from __future__ import annotations

import json
import time
from typing import Annotated

import typer
from rich.console import Console, Group, RenderableType
from rich.live import Live
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
"""Clocks that differ by less are not worth a word."""


def status(
    watch: Annotated[
        bool, typer.Option("--watch", help="Show it again every second.")
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="JSON on standard output.")
    ] = False,
    mlx: Annotated[
        bool, typer.Option("--mlx", help="The ring as a hostfile for mlx.launch.")
    ] = False,
) -> None:
    """Show the nodes of the cluster, the leader, health, devices and links."""
    console = Console()
    errors = Console(stderr=True)
    try:
        if watch and not as_json:
            _watch(console)
            return
        reports = query_status(settings.home_directory())
    except RingleaderError as exc:
        errors.print(f"status: {exc}", style="bold red", markup=False)
        raise typer.Exit(1) from exc
    except KeyboardInterrupt as exc:
        raise typer.Exit(130) from exc
    if mlx:
        typer.echo(reports[0].snapshot.mlx if reports else "")
    elif as_json:
        typer.echo(json.dumps([_as_dict(s) for s in reports], indent=1))
    else:
        console.print(_picture(reports))
    if not reports:
        raise typer.Exit(3)


def _watch(console: Console) -> None:
    home = settings.home_directory()
    with Live(
        _picture(query_status(home)), console=console, auto_refresh=False
    ) as live:
        while True:
            time.sleep(_EVERY_S)
            live.update(_picture(query_status(home)), refresh=True)


def _as_dict(report: StatusReport) -> dict[str, object]:
    return {"from": report.source, **report.snapshot.plain()}


def _picture(reports: list[StatusReport]) -> RenderableType:
    if not reports:
        return Text(
            "No node of this cluster runs here or answers on the network.\n"
            "Start one with: ringleader run --nodes 2 train.py\n"
            "If one runs on another machine: ringleader doctor"
        )
    return Group(*(part for report in reports for part in _parts(report)))


def _parts(report: StatusReport) -> list[RenderableType]:
    shot = report.snapshot
    leader = next((row.name for row in shot.nodes if row.is_leader), "nobody")
    healthy = sum(row.health == "healthy" for row in shot.nodes)
    title = (
        f"cluster {shot.cluster}   epoch {shot.epoch}   leader {leader}   "
        f"{healthy} of {len(shot.nodes)} nodes healthy   (seen from {report.source})"
    )
    parts: list[RenderableType] = [Text(title, style="bold"), _nodes(shot)]
    if len(shot.ring) > 1:
        parts.append(_links(shot))
    parts += [Text(f"! {trouble}", style="yellow") for trouble in shot.troubles]
    return parts


def _nodes(shot: Snapshot) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    for column in ("node", "id", "health", "device", "cores", "memory", "address"):
        table.add_column(column)
    for column in ("latency", "job"):
        table.add_column(column)
    for row in sorted(shot.nodes, key=lambda row: _place(shot, row)):
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


def _place(shot: Snapshot, row: NodeRow) -> int:
    return shot.ring.index(row.node) if row.node in shot.ring else len(shot.ring)


def _machine(row: NodeRow) -> tuple[str, str, str]:
    if row.profile is None:
        return "?", "?", "?"
    profile = row.profile
    device = profile.accelerators[0].name if profile.accelerators else profile.chip
    memory = units.format_bytes(profile.total_ram_bytes)
    return device[:32], str(profile.physical_cores), memory


def _links(shot: Snapshot) -> Table:
    """One row per hop of the ring: what a ring all-reduce will feel."""
    table = Table(box=None, pad_edge=False, header_style="dim")
    for column in ("link", "latency", "there", "back", "clocks"):
        table.add_column(column)
    rows = {row.node: row for row in shot.nodes}
    hops = list(zip(shot.ring, [*shot.ring[1:], shot.ring[0]], strict=True))
    for source, to in hops[: 1 if len(hops) == 2 else None]:
        if source in rows and to in rows:
            name = f"{rows[source].name} -> {rows[to].name}"
            table.add_row(Text(name), *_link(rows[source], rows[to]))
    return table


def _link(source: NodeRow, to: NodeRow) -> tuple[str, ...]:
    """Latency, both rates and clocks, as whichever end has measured them."""
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
