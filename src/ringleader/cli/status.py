"""``ringleader status``: shows nodes, leader, health, links and the latest events."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from ringleader import settings
from ringleader.cli import units
from ringleader.cli.terminal import add_id, print_tables
from ringleader.cli.up_report import allows
from ringleader.errors import RingleaderError
from ringleader.ids import NodeId, short, tell_apart

if TYPE_CHECKING:  # slow to import; --help needs none of them
    from ringleader.node.peering.status_query import StatusReport
    from ringleader.node.protocol.snapshot import NodeRow, Snapshot
    from ringleader.topology.node_profile import NodeProfile

_COLOURS = {"healthy": "green", "suspect": "yellow", "dead": "red"}
_EVERY_S = 1.0
_CLOCK_S = 2.0
"""Smaller clock differences are not shown."""
_MIN_ADDRESS = 24
"""Characters of an address that stay in one line, however narrow the terminal is."""
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
    network. If none answers, shows what is known without, and exits with 3.
    """
    console = Console()
    errors = Console(stderr=True)
    try:
        if watch and not as_json:
            _watch(console)
            return
        reports, is_live = _query()
    except RingleaderError as exc:
        errors.print(f"ringleader status: {exc}", style="bold red", markup=False)
        raise typer.Exit(1) from exc
    except KeyboardInterrupt as exc:
        raise typer.Exit(130) from exc
    if mlx:
        typer.echo(reports[0].snapshot.mlx)
    elif as_json:
        typer.echo(json.dumps([_as_dict(report) for report in reports], indent=1))
    else:
        print_tables(_render(reports, is_live=is_live))
    if not is_live:
        raise typer.Exit(3)


def _query() -> tuple[list[StatusReport], bool]:
    """Return the reports of agents, or what is known without; and whether it is one."""
    from ringleader.node.peering.status_query import query_status

    home = settings.home_directory()
    reports = query_status(home)
    if reports:
        return reports, True
    from ringleader.node.peering.idle_status import idle_status

    return [idle_status(home)], False


def _watch(console: Console) -> None:
    from rich.live import Live

    def render() -> RenderableType:
        reports, is_live = _query()
        return _render(reports, is_live=is_live)

    with Live(render(), console=console, auto_refresh=False) as live:
        while True:
            time.sleep(_EVERY_S)
            live.update(render(), refresh=True)


def _as_dict(report: StatusReport) -> dict[str, object]:
    return {"from": report.source, **report.snapshot.plain()}


def _render(reports: list[StatusReport], *, is_live: bool) -> RenderableType:
    if not is_live:
        snapshot = reports[0].snapshot
        return Group(
            Text(f"cluster {snapshot.cluster}   no node of it runs", style="bold"),
            _nodes(snapshot),
            Text(
                "Type on every machine: ringleader up\n"
                "Then, on one of them, to train: ringleader run train.py\n"
                "If one runs on another machine now: ringleader doctor"
            ),
        )
    return Group(*(part for report in reports for part in _parts(report)))


def _parts(report: StatusReport) -> list[RenderableType]:
    snapshot = report.snapshot
    leader = _names(snapshot).get(NodeId(snapshot.leader), "none")
    title = (
        f"cluster {snapshot.cluster}   leader {leader}   (seen from {report.source})"
    )
    if snapshot.coordinator:
        rank = snapshot.coordinator_rank
        title += f"   coordinator {snapshot.coordinator}"
        title += f" (rank {rank})" if rank >= 0 else ""
    parts: list[RenderableType] = [
        Text(title, style="bold"),
        _health(snapshot),
        _nodes(snapshot),
        _machines(snapshot),
    ]
    if len(snapshot.ring) > 1:
        parts.append(_links(snapshot))
    if snapshot.is_resident:
        here = next(row for row in snapshot.nodes if row.is_here)
        parts.append(Text(allows(snapshot.cluster, accepts_jobs=here.accepts_jobs)))
        if not here.accepts_jobs:
            # Imported here: it is slow, and says nothing where jobs are allowed.
            from ringleader.cli import jobs_of_others

            found = jobs_of_others.running_jobs_of_others(settings.home_directory())
            lines = jobs_of_others.describe_jobs_of_others(found, snapshot)
            parts += [Text(line) for line in lines]
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
    longest = max((len(row.address) for row in snapshot.nodes), default=0)
    rows = _in_ring_order(snapshot)
    add_id(table, "node", (f"{row.name} *" for row in rows))
    add_id(table, "id", (short(NodeId(row.node)) for row in rows))
    table.add_column("health")
    # Never cut: people copy it. An address longer than this continues below.
    table.add_column("address", overflow="fold", min_width=min(longest, _MIN_ADDRESS))
    table.add_column("latency", no_wrap=True)
    table.add_column("accepts jobs")
    jobs = [job for row in rows for job in row.jobs]
    table.add_column("job", min_width=max(map(len, jobs), default=0))
    for row in rows:
        health = Text(row.health, style=_COLOURS.get(row.health, ""))
        name = Text(row.name + (" *" if row.is_leader else ""))
        if row.is_here:
            name.stylize("bold")
        table.add_row(
            name,
            short(NodeId(row.node)),
            health if row.in_view or not snapshot.ring else _outside(row),
            row.address or "-",
            "here" if row.is_here else _time(row.latency_s),
            "yes" if row.accepts_jobs else "no",
            Text(", ".join(row.jobs) or "-"),
        )
    return table


def _outside(row: NodeRow) -> Text:
    return Text(f"{row.health}, not in view")


def _in_ring_order(snapshot: Snapshot) -> list[NodeRow]:
    ring = {node: index for index, node in enumerate(snapshot.ring)}
    return sorted(snapshot.nodes, key=lambda row: ring.get(row.node, len(ring)))


def _names(snapshot: Snapshot) -> dict[NodeId, str]:
    return tell_apart({NodeId(row.node): row.name for row in snapshot.nodes})


def _machines(snapshot: Snapshot) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    names = _names(snapshot)
    add_id(table, "machine", names.values())
    for column in ("device", "cores", "memory"):
        table.add_column(column)
    for row in _in_ring_order(snapshot):
        if row.profile is not None:
            cells = (names[NodeId(row.node)], *_machine(row.profile))
            table.add_row(*(Text(cell) for cell in cells))
    return table


def _machine(profile: NodeProfile) -> tuple[str, str, str]:
    device = profile.accelerators[0].name if profile.accelerators else profile.chip
    memory = units.format_bytes(profile.total_ram_bytes)
    return device[:32], str(profile.physical_cores), memory


def _links(snapshot: Snapshot) -> Table:
    """Return one row per hop of the ring, the links that an all-reduce uses."""
    table = Table(box=None, pad_edge=False, header_style="dim")
    names = _names(snapshot)
    longest = max(map(len, names.values()), default=0)
    table.add_column("link", min_width=len("-> ") + longest)
    for column in ("latency", "there", "back", "clocks"):
        table.add_column(column)
    rows = {row.node: row for row in snapshot.nodes}
    ring = snapshot.ring
    hops = list(zip(ring, [*ring[1:], ring[0]], strict=True))
    for source, to in hops[: 1 if len(hops) == 2 else None]:
        if source in rows and to in rows:
            name = f"{names[NodeId(source)]} -> {names[NodeId(to)]}"
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
