"""The ``ringleader`` command. Each command is a function in a file of its name.

Nothing here imports torch: ``ringleader --help`` must answer at once, so commands that
need tensors import torch inside themselves.
"""

from __future__ import annotations

import typer

from ringleader.cli.bench import bench
from ringleader.cli.demo import demo
from ringleader.cli.simulate import simulate

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Train one PyTorch model on every machine you own.",
)


@app.callback()
def main() -> None:
    """Train one PyTorch model on every machine you own."""


app.command()(bench)
app.command()(demo)
app.command()(simulate)

if __name__ == "__main__":
    app()
