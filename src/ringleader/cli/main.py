"""The ``ringleader`` command. Each subcommand is a function in a module of its name.

A command's module is imported when the command is called, so that ``--help`` and
``status`` answer at once: all modules together take a second to import, torch more.
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

SUMMARIES = {
    "init": "Make a cluster and print the phrase with which other machines join.",
    "join": "Enter a cluster with the phrase that 'ringleader init' showed, or with a "
    "PIN.",
    "invite": "Show a PIN with which one more machine can join the cluster.",
    "leave": "Remove this machine from its cluster.",
    "up": "Join the cluster in the background and stay, until 'ringleader down'.",
    "down": "Leave the cluster: end the agent that 'ringleader up' started.",
    "run": "Find the other machines of the cluster and run SCRIPT on all of them.",
    "jobs": "List the jobs of all machines of the cluster, running ones first.",
    "logs": "Show what the ranks of a job have printed, on all machines.",
    "fetch": "Bring files that a job wrote to this machine.",
    "attach": "Show the output of a job until it ends; Ctrl-C stops the job.",
    "stop": "End a job on all of its machines, from any machine of the cluster.",
    "coordinator": "Let workers find each other by gRPC where multicast does not work.",
    "status": "Show the nodes of the cluster, their health, links, and the latest "
    "events.",
    "dashboard": "Open a web page with the machines, links and jobs of the cluster.",
    "top": "Show machines, links and jobs of the cluster, refreshed every second.",
    "metrics": "Show the metrics of this machine's agent and workers, as Prometheus "
    "reads them.",
    "doctor": "Find out why machines do not reach each other, and what to do about it.",
    "checkpoint": "List, verify, export, reshard or prune the checkpoints in a folder.",
    "backends": "Show which backends of torch and which links of Ringleader work here.",
    "serve": "Serve a training run to workers on the internet.",
    "work": "Compute updates for a server until training is over, a limit, or Ctrl-C.",
    "evaluate": "Test trained weights, and export them for torch.load.",
    "bench": "Measure Ringleader's collectives next to Gloo and OpenMPI on this "
    "machine.",
    "demo": "Train a digit classifier with several nodes here and check the result.",
    "simulate": "Predict how long a collective takes by simulating it in virtual time.",
    "completion": "Print the completion script of a shell: bash, zsh or fish.",
}
"""Command -> what ``--help`` says of it: the first paragraph of its docstring."""

_SETTINGS = {"run": {"allow_interspersed_args": False}}
"""Arguments after the script of ``run`` belong to the script."""


_PLAIN: dict[str, Any] = {
    "add_completion": False,
    "pretty_exceptions_enable": False,
    "rich_markup_mode": None,
}
"""Boxes around the help cost half of its time: rich imports a Markdown parser."""


def load_command(name: str) -> Any:  # noqa: ANN401 - a click command, typer's or click's
    """Import the module of a command and return the command."""
    single = typer.Typer(**_PLAIN)
    function = getattr(import_module(f"ringleader.cli.{name}"), name)
    command = single.command(name, cls=_Command, context_settings=_SETTINGS.get(name))
    command(function)
    return typer.main.get_command(single)


def _with_default(option: Any) -> Any:  # noqa: ANN401 - a click option
    """Give ``--help`` a default: typer imports pydantic (0.15 s) to convert None."""
    if option is not None:
        option.default = False
    return option


class _Command(TyperCommand):
    def get_help_option(self, ctx: Any) -> Any:  # noqa: ANN401
        return _with_default(super().get_help_option(ctx))


_SYNONYMS = {
    "start": "'ringleader up' joins the cluster and stays; "
    "'ringleader run SCRIPT' trains.",
    "train": "To train: ringleader run SCRIPT",
    "launch": "To train: ringleader run SCRIPT",
    "ps": "The jobs are shown by: ringleader jobs",
    "ls": "The jobs are shown by: ringleader jobs",
    "list": "The jobs are shown by: ringleader jobs",
    "kill": "A job is ended by: ringleader stop JOB",
    "cancel": "A job is ended by: ringleader stop JOB",
    "nodes": "The machines are shown by: ringleader status",
    "create": "A cluster is made by: ringleader init",
    "quit": "'ringleader down' ends the agent; 'ringleader leave' forgets the cluster.",
    "help": "Help: ringleader --help, and ringleader COMMAND --help",
    "version": "The version is shown by: ringleader --version",
}
"""What people type that is no command -> what they may want."""


def _meant(word: str) -> str:
    if word.endswith(".py"):
        return f"To train: ringleader run {word}"
    return _SYNONYMS.get(word, "")


class _LazyGroup(TyperGroup):
    """Knows the summaries of its commands; imports only the one that is called."""

    def get_help_option(self, ctx: Any) -> Any:  # noqa: ANN401
        return _with_default(super().get_help_option(ctx))

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:  # noqa: ANN401
        if args[0] not in self.commands and (hint := _meant(args[0])):
            ctx.fail(f"No such command '{args[0]}'. {hint}")
        name, _, rest = super().resolve_command(ctx, args)
        return name, load_command(str(name)), rest


app = typer.Typer(cls=_LazyGroup, invoke_without_command=True, **_PLAIN)


def _print_version(is_asked: bool) -> None:
    if is_asked:
        typer.echo(f"ringleader {sys.modules['ringleader'].__version__}")
        raise typer.Exit


@app.callback()
def main(
    context: typer.Context,
    version: Annotated[
        bool,
        typer.Option(
            "--version",
            is_eager=True,
            callback=_print_version,
            help="Print the version and exit.",
        ),
    ] = False,
) -> None:
    """Train one PyTorch model on every machine you own."""
    if context.invoked_subcommand is None:
        import_module("ringleader.cli.welcome").print_welcome()


def _placeholder() -> None:
    """Stands for a command whose module is not imported yet."""


for _name, _summary in SUMMARIES.items():
    app.command(_name, short_help=_summary, help=_summary)(_placeholder)

if __name__ == "__main__":
    app()
