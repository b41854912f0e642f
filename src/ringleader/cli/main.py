"""The ``ringleader`` command. Each subcommand is a function in a file of its name.

Nothing here imports torch, so that ``ringleader --help`` is fast: commands that need
tensors import torch inside their functions.
"""

from __future__ import annotations

import typer

from ringleader.cli.bench import bench
from ringleader.cli.demo import demo
from ringleader.cli.doctor import doctor
from ringleader.cli.evaluate import evaluate
from ringleader.cli.init import init
from ringleader.cli.invite import invite
from ringleader.cli.join import join
from ringleader.cli.leave import leave
from ringleader.cli.run import SETTINGS, run
from ringleader.cli.serve import serve
from ringleader.cli.simulate import simulate
from ringleader.cli.status import status
from ringleader.cli.work import work

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Train one PyTorch model on every machine you own.",
)


@app.callback()
def main() -> None:
    """Train one PyTorch model on every machine you own."""


app.command()(init)
app.command()(join)
app.command()(invite)
app.command()(leave)
app.command(context_settings=SETTINGS)(run)
app.command()(status)
app.command()(doctor)
app.command()(serve)
app.command()(work)
app.command()(evaluate)
app.command()(bench)
app.command()(demo)
app.command()(simulate)

if __name__ == "__main__":
    app()
