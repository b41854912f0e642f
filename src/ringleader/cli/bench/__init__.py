"""``ringleader bench``: measures our collectives, Gloo's and OpenMPI's in one run."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.progress import TimeRemainingColumn as RemainingColumn

from ringleader.cli import units
from ringleader.cli.bench import report
from ringleader.cli.bench.bench_plan import (
    ALGORITHMS,
    DEFAULT_SIZES,
    LAN_SIZES,
    OPERATIONS,
    QUICK_SIZES,
    BenchPlan,
    competitors,
)
from ringleader.cli.bench.bench_run import BenchOutcome, run
from ringleader.cli.bench.bench_session import RankLocation
from ringleader.cli.bench.measurement import check_auto
from ringleader.cli.bench.table import auto_table, draw, result_tables
from ringleader.cli.extras import require_extra
from ringleader.cli.interrupt import exit_on_sigterm
from ringleader.errors import ConfigError, RingleaderError

RankLocations = Callable[[int], Sequence[RankLocation]]
"""Returns the locations of the ranks, given their number."""

_QUICK_BATCH_S = 0.02
_BATCH_S = 0.05
_PIPE_WIDTH = 200  # for files and pipes, which have no width
_MAX_RANKS = 64  # on one machine; more would only measure the scheduler


def bench(  # noqa: PLR0913 - one argument per flag
    ranks: Annotated[
        str | None, typer.Option(help="Numbers of ranks [2,4,8; quick: 2,4].")
    ] = None,
    sizes: Annotated[
        str | None, typer.Option(help=f"Tensor sizes [{DEFAULT_SIZES}].")
    ] = None,
    operations: Annotated[str, typer.Option(help="Collectives to measure.")] = ",".join(
        OPERATIONS
    ),
    transport: Annotated[
        str, typer.Option(help="Transports of Ringleader to measure.")
    ] = "shm,tcp",
    peers: Annotated[
        str, typer.Option(help="Libraries to compare with; '' for none.")
    ] = "gloo,mpi",
    rounds: Annotated[
        int | None, typer.Option(help="Rounds per library and size [5; quick: 3].")
    ] = None,
    algorithms: Annotated[
        str,
        typer.Option(help="Also measure these algorithms of Ringleader, or 'all'."),
    ] = "",
    lan: Annotated[
        int, typer.Option(help="Run on a virtual LAN of this many hosts (needs root).")
    ] = 0,
    rate: Annotated[
        str, typer.Option(help="Rate of each host's link in the virtual LAN.")
    ] = "1gbit",
    quick: Annotated[
        bool, typer.Option(help="Measure a few sizes in about a minute.")
    ] = False,
    out: Annotated[
        Path | None,
        typer.Option(help="Folder for results as JSON, markdown and a plot."),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print JSON to standard output.")
    ] = False,
) -> None:
    """Measure Ringleader's collectives next to Gloo and OpenMPI on this machine."""
    try:
        plan = BenchPlan(
            ranks=_ranks(ranks, quick=quick, lan=lan),
            sizes_bytes=_sizes(sizes, quick=quick, lan=lan),
            operations=_names(operations),
            competitors=competitors(
                _without("shm" if lan else None, transport),
                _without("mpi" if lan else None, peers),
                ALGORITHMS if algorithms == "all" else _names(algorithms),
            ),
            rounds=rounds or (3 if quick else 5),
            batch_s=_QUICK_BATCH_S if quick else _BATCH_S,
        )
    except ConfigError as exc:
        raise typer.BadParameter(str(exc)) from exc
    try:
        if out is not None:
            require_extra("bench")
        with exit_on_sigterm(), _locations(lan, rate) as locations:
            _bench(plan, locations, out, as_json=as_json)
    except RingleaderError as exc:
        Console(stderr=True).print(f"bench: {exc}", style="bold red", markup=False)
        raise typer.Exit(1) from exc


def _bench(
    plan: BenchPlan, locations: RankLocations, out: Path | None, *, as_json: bool
) -> None:
    """Run, then print and save the results, also those measured before an error."""
    started = datetime.now().astimezone()
    outcome = BenchOutcome()
    try:
        with _progress(plan) as tick:
            run(plan, locations, tick, outcome)
    except RingleaderError as exc:
        outcome.note(f"stopped early: {exc}")
        raise
    finally:
        if outcome.results.all():
            _show(plan, outcome, started, out, as_json=as_json)


def _show(
    plan: BenchPlan,
    outcome: BenchOutcome,
    started: datetime,
    out: Path | None,
    *,
    as_json: bool,
) -> None:
    whole = report.document(plan, outcome, started)
    if as_json:
        typer.echo(json.dumps(whole, indent=1))
    else:
        _print_tables(outcome)
    if out is not None:
        for path in report.save(whole, outcome, started, out):
            typer.echo(f"wrote {path}", err=True)


def _print_tables(outcome: BenchOutcome) -> None:
    console = Console()
    if not console.is_terminal:
        console.width = _PIPE_WIDTH
    drawn = [draw(content) for content in result_tables(outcome.results)]
    checks = check_auto(outcome.results)
    if checks:
        drawn.append(draw(auto_table(checks)))
    for table in drawn:
        console.print(table)
    console.print(report.HOW, style="dim", highlight=False)
    for note in outcome.notes:
        console.print(f"Note: {note}", markup=False)


@contextmanager
def _locations(lan: int, rate: str) -> Iterator[RankLocations]:
    if not lan:
        yield lambda ranks: [RankLocation()] * ranks
        return
    from ringleader.simulation.lan import lan as open_lan  # Linux only

    with open_lan(hosts=lan, rate=rate) as net:
        there = [RankLocation(host.address, host.popen, "eth0") for host in net.hosts]
        yield lambda ranks: there[:ranks]


@contextmanager
def _progress(plan: BenchPlan) -> Iterator[Callable[[str, float], None]]:
    """Show a progress bar on stderr; standard output is for tables and JSON.

    If stderr is a file or a pipe, print one line per cell instead.
    """
    console = Console(stderr=True)
    columns = (
        BarColumn(),
        TextColumn("{task.percentage:3.0f} %"),
        TimeElapsedColumn(),
        RemainingColumn(),
        TextColumn("{task.description}", markup=False),
    )
    bar = Progress(
        *columns, console=console, transient=True, disable=not console.is_terminal
    )
    shown = ""
    with bar:
        task = bar.add_task("starting", total=plan.cost_s())

        def tick(what: str, cost_s: float) -> None:
            nonlocal shown
            bar.update(task, description=what, advance=cost_s)
            cell = what.partition(":")[0]
            if not console.is_terminal and cell != shown:
                shown = cell
                console.print(cell, highlight=False)

        yield tick


def _names(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",") if name.strip())


def _without(impossible: str | None, text: str) -> tuple[str, ...]:
    """Split names, without the one that cannot run on a virtual LAN.

    Its hosts share no memory, and mpirun would need ssh into namespaces.
    """
    return tuple(name for name in _names(text) if name != impossible)


def _ranks(text: str | None, *, quick: bool, lan: int) -> tuple[int, ...]:
    default = str(lan) if lan else "2,4" if quick else "2,4,8"
    most = lan or _MAX_RANKS
    return tuple(units.parse_counts(text or default, what="ranks", most=most))


def _sizes(text: str | None, *, quick: bool, lan: int) -> tuple[int, ...]:
    default = QUICK_SIZES if quick else LAN_SIZES if lan else DEFAULT_SIZES
    return tuple(units.parse_size(name) for name in _names(text or default))
