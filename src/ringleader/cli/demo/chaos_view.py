"""Shows ``ringleader demo --chaos`` in the terminal and returns its exit status."""

from __future__ import annotations

import json
from contextlib import nullcontext

import typer
from rich.console import Console
from rich.live import Live
from rich.text import Text

from ringleader.cli.demo.chaos import ChaosResult, run_chaos
from ringleader.cli.demo.loss_curve import draw
from ringleader.cli.interrupt import exit_on_sigterm

_SAY_EVERY = 50
"""Steps between two lines where the output is not a terminal."""


def show_chaos(nodes: int, epochs: int, *, as_json: bool) -> int:
    """Run the demo, draw its loss over the uninterrupted one; 0 if they agree."""
    console = Console(stderr=True, highlight=False)
    console.print(
        f"Training with {nodes} nodes on this machine; one of them is killed every few "
        "seconds ..."
    )
    live = Live(console=console, refresh_per_second=4, transient=True)
    told = 0

    def on_progress(result: ChaosResult) -> None:
        nonlocal told
        if console.is_terminal:
            live.update(_drawn(result))
        elif len(result.run) >= told + _SAY_EVERY:
            told = len(result.run)
            kills = len(result.killed_at)
            console.print(f"step {told}: loss {result.run[told]:.4f}, {kills} kills")

    with exit_on_sigterm(), live if console.is_terminal else nullcontext():
        result = run_chaos(nodes, epochs, on_progress)
    if as_json:
        typer.echo(json.dumps(_plain(result), indent=1))
    else:
        Console(highlight=False).print(_drawn(result))
        typer.echo("\n".join(result.lines()))
    for failure in result.failures():
        console.print(f"demo: {failure}", style="bold red", markup=False)
    return int(bool(result.failures()))


def _drawn(result: ChaosResult) -> Text:
    return draw(result.reference, result.run, result.killed_at)


def _plain(result: ChaosResult) -> dict[str, object]:
    return {
        "steps": len(result.run),
        "worker_kills": result.worker_kills,
        "machine_kills": result.machine_kills,
        "killed_at": result.killed_at,
        "seconds": result.seconds,
        "largest_difference": result.largest_difference,
        "troubles": result.failures(),
    }
