"""``ringleader top``: machines, links and jobs in the terminal, live."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from ringleader import settings
from ringleader.cli import units
from ringleader.cli.terminal import add_id, exit_on_error, print_tables

if TYPE_CHECKING:  # slow to import; --help needs none of them
    from ringleader.monitoring.open_dashboard import PageReader

_EVERY_S = 1.0
_COLOURS = {"healthy": "green", "suspect": "yellow", "dead": "red"}
_NUM_EVENTS = 5
_BAR = 10
_BLOCKS = "▁▂▃▄▅▆▇█"
_CURVE = 20
"""Characters of a curve."""

Row = Mapping[str, Any]


def top(
    once: Annotated[
        bool, typer.Option("--once", help="Print once and exit, as in a pipe.")
    ] = False,
) -> None:
    """Show machines, links and jobs of the cluster, refreshed every second.

    It is the dashboard for a terminal: 'ringleader dashboard' opens the page.
    """
    from ringleader.monitoring.open_dashboard import PageReader

    console = Console()
    with exit_on_error("top"):
        reader = PageReader.connect(settings.home_directory())
        try:
            if once or not console.is_terminal:
                reader.read()  # lets the agent begin to measure
                time.sleep(_EVERY_S)
                print_tables(render(reader.read()))
            else:
                _watch(console, reader)
        finally:
            reader.close()


def _watch(console: Console, reader: PageReader) -> None:
    from rich.live import Live

    first = render(reader.read())
    with Live(first, console=console, screen=True, auto_refresh=False) as live:
        while True:
            time.sleep(_EVERY_S)
            live.update(render(reader.read()), refresh=True)


def render(state: Mapping[str, Mapping[str, Row]]) -> RenderableType:
    """Return the state of the page as text."""
    cluster = state["cluster"][""]
    title = f"cluster {cluster['name']}   leader {cluster['leader'] or 'none'}"
    parts: list[RenderableType] = [
        Text(f"{title}   view {cluster['epoch']}", style="bold"),
        _machines(state["machines"]),
    ]
    if len(state["machines"]) > 1:
        parts.append(_links(state))
    parts += [_job(job) for job in state["jobs"].values()]
    texts = [str(row["text"]) for row in state["troubles"].values()]
    parts += [Text(f"! {text}", style="yellow") for text in texts]
    parts.append(_events(state["events"]))
    return Group(*parts)


def _table(*columns: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    for column in columns:
        table.add_column(column)
    return table


def _machines(machines: Mapping[str, Row]) -> Table:
    table = _table()
    add_id(table, "machine", (f"{row['name']} *" for row in machines.values()))
    for column in ("health", "cores", "memory", "more", "device", "jobs"):
        table.add_column(column)
    for row in machines.values():
        name = Text(row["name"] + (" *" if row["is_leader"] else ""))
        if row["is_here"]:
            name.stylize("bold")
        health = Text(row["health"], style=_COLOURS.get(row["health"], ""))
        devices = [each["name"] for each in row.get("devices", [])]
        device = Text((devices or [row.get("chip", "-")])[0][:28])
        jobs = Text(", ".join(row["jobs"]) or "-")
        table.add_row(name, health, *_load(row.get("load")), device, jobs)
    return table


def _load(load: Row | None) -> tuple[RenderableType, RenderableType, str]:
    if load is None:
        return "-", "-", ""
    memory = load["memory_used_bytes"] / max(1, load["memory_total_bytes"])
    more = []
    if load.get("gpu_percent") is not None:
        more.append(f"GPU {load['gpu_percent']:.0f} %")
    if load.get("temperature_c") is not None:
        more.append(f"{load['temperature_c']:.0f} °C")
    if load.get("battery_percent") is not None:
        more.append(f"battery {load['battery_percent']:.0f} %")
    return _bar(load["cpu_percent"] / 100), _bar(memory), ", ".join(more)


def _bar(share: float) -> Text:
    share = min(1.0, max(0.0, share))
    full = round(share * _BAR)
    style = "red" if share > 0.9 else "green" if share < 0.7 else "yellow"
    made = Text("█" * full, style=style)
    made.append("░" * (_BAR - full), style="dim")
    made.append(f" {share * 100:3.0f} %", style="")
    return made


def _links(state: Mapping[str, Mapping[str, Row]]) -> Table:
    """Return one row per hop of the ring, the links that an all-reduce uses."""
    from ringleader.dashboard.page_state import SHARED_MEMORY, find_link

    table = _table("link", "latency", "there", "back")
    names = {node: row["name"] for node, row in state["machines"].items()}
    for one, other in _hops(state["cluster"][""]["ring"]):
        link = find_link(state, one, other)
        pair = Text(f"{names.get(one, '?')} -> {names.get(other, '?')}")
        if link["kind"] is None:
            table.add_row(pair, "not measured yet")
        elif link["kind"] == SHARED_MEMORY:
            table.add_row(pair, "shared memory")
        else:
            rates = (link["there_bytes_per_s"], link["back_bytes_per_s"])
            cells = [f"{units.format_bytes(int(each))}/s" for each in rates]
            table.add_row(pair, _time(link["latency_s"]), *cells)
    return table


def _hops(ring: list[str]) -> Iterator[tuple[str, str]]:
    pairs = list(zip(ring, [*ring[1:], *ring[:1]], strict=True))
    yield from pairs[: 1 if len(pairs) == 2 else None]


def _times(job: Row) -> str:
    """Return since when a job runs and for how long, or did; "" if nobody knows."""
    if not job["started_s"]:
        return ""
    began = time.strftime("%H:%M:%S", time.localtime(job["started_s"]))
    took_s = max(0.0, (job["ended_s"] or time.time()) - job["started_s"])
    return f", since {began}, {units.format_seconds(took_s)}"


def _job(job: Row) -> RenderableType:
    title = Text(f"job {job['name']}  {job['state']}  ", style="bold")
    title.append(job["about"], style="dim")
    title.append(_times(job), style="dim")
    parts: list[RenderableType] = [title]
    if job["failure"]:
        parts.append(Padding(Text(job["failure"], style="red"), (0, 0, 0, 2)))
    for name, points in job["numbers"].items():
        values = [value for _, value in points if value is not None]
        if points:
            last = points[-1][1]
            shown = "not a number" if last is None else f"{last:.4g}"
            parts.append(Text(f"  {name} {shown}  {curve(values)}"))
    if job["ranks"]:
        table = _table(
            "  rank", "machine", "step", "time of a step", "sends", "waits for"
        )
        for row in job["ranks"]:
            step = "-" if row["step"] is None else str(row["step"])
            sent = row["sent_bytes_per_s"]
            sends = f"{units.format_bytes(int(sent))}/s" if sent else "-"
            if row["compression"]:
                sends += f", compressed {row['compression']:g} times"
            cells = (row["machine"], step, _time(row["step_s"]), sends)
            texts = [
                Text(each) for each in (str(row["rank"]), *cells, row["waits_for"])
            ]
            texts[0].pad_left(2)
            table.add_row(*texts)
        parts.append(table)
    return Group(*parts)


def curve(values: list[float]) -> str:
    """Return values as a line of blocks, the newest at the right."""
    if not values:
        return ""
    step = max(1, -(-len(values) // _CURVE))
    picked = values[::-step][::-1]
    low, high = min(picked), max(picked)
    width = (high - low) or 1.0
    last = len(_BLOCKS) - 1
    return "".join(_BLOCKS[round((value - low) / width * last)] for value in picked)


def _events(events: Mapping[str, Row]) -> Table:
    table = _table("time", "event")
    newest = sorted(events.values(), key=lambda row: row["time_s"])[-_NUM_EVENTS:]
    for row in newest:
        clock = time.strftime("%H:%M:%S", time.localtime(row["time_s"]))
        table.add_row(clock, Text(row["text"]))
    return table


def _time(seconds: float | None) -> str:
    if seconds is None:
        return "-"
    return f"{seconds * 1000:.2f} ms" if seconds < 1 else f"{seconds:.1f} s"
