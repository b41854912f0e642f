"""``run_everywhere``: ``ringleader run`` for all machines, if it is not for one."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import typer

from ringleader import settings
from ringleader.cli import run_options
from ringleader.cli.travel import travelling_folder
from ringleader.errors import ConfigError
from ringleader.node.launch.dry_run import plans_by_itself
from ringleader.node.launch.local_modules import find_sources
from ringleader.node.launch.program import Program
from ringleader.settings.tracing import check_path

THIS_MACHINE = (
    *("here", "job", "min_nodes", "max_nodes", "wait"),
    *("peers", "coordinator", "mdns", "interface", "port", "profile"),
    *("tls_ca", "tls_cert", "tls_key"),
)
"""Options for a command that is typed on every machine."""
ALL_MACHINES = (
    *("on", "without", "detach", "fetch", "only_rank", "quiet_ranks", "no_sync"),
    "sync_env",
)
"""Options for a command that is typed on one machine."""
FORWARDED = (
    *("max_restarts", "survive", "partition", "tensor_port", "transport", "timeout"),
    *("any_script", "plaintext", "compress", "dry_run", "backend"),
)
"""Options that the launcher of each machine gets as they were given."""
_FLAGS = {"without": "--not"}


def run_everywhere(ctx: typer.Context, program: Program, processes: int) -> int | None:
    """Run the program on the machines of the cluster and return the exit status.

    None if the command is for this machine alone: the user says so, or no agent was
    started with ``ringleader up``.
    """
    mine, all_of_them = given(ctx, THIS_MACHINE), given(ctx, ALL_MACHINES)
    if _is_least_left(ctx):
        mine.remove("--min-nodes")
    if mine and all_of_them:
        text = f"{mine[0]} is for a command that is typed on every machine"
        raise ConfigError(f"{text}, {all_of_them[0]} for one that is typed on one")
    if mine:
        return None
    # Imported here: the launcher of a job, with --here, needs none of it.
    from ringleader.jobs.client.channel import find_agent

    home = settings.home_directory()
    agent = find_agent(home)
    if agent is None:
        if all_of_them:
            text = f"{all_of_them[0]}: no agent runs on this machine"
            raise ConfigError(f"{text}; start it with: ringleader up")
        return None
    from ringleader.cli.run_cluster import run_on_cluster

    return run_on_cluster(agent, _order(ctx, program, processes, home))


def given(ctx: typer.Context, names: tuple[str, ...]) -> list[str]:
    """Return the flags of those options that are on the command line."""
    return [flag(name) for name in names if _is_given(ctx, name)]


def flag(name: str) -> str:
    """Return the flag of a parameter."""
    return _FLAGS.get(name, f"--{name.replace('_', '-')}")


def forwarded_options(ctx: typer.Context) -> list[str]:
    """Return the options for the launcher of each machine."""
    found: list[str] = []
    for name in FORWARDED:
        if _is_given(ctx, name):
            value = ctx.params[name]
            found += [flag(name)] if value is True else [flag(name), str(value)]
    if _is_least_left(ctx):
        found += ["--min-nodes", str(ctx.params["min_nodes"])]
    if _is_given(ctx, "trace"):  # into the folder of the job, and home from there
        found += ["--trace", Path(ctx.params["trace"]).name]
    if _is_given(ctx, "checkpoint"):
        folder = ctx.params["checkpoint"]
        home = Path(os.path.expanduser("~"))
        folder = travelling_folder(folder, Path.cwd(), home)
        found += ["--checkpoint", folder]
    return found


def _is_least_left(ctx: typer.Context) -> bool:
    """Return whether --min-nodes says how many must be left of those that begin."""
    named = _is_given(ctx, "nodes") and _is_given(ctx, "min_nodes")
    return named and bool(ctx.params["survive"])


def _is_given(ctx: typer.Context, name: str) -> bool:
    source = ctx.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"


def _order(ctx: typer.Context, program: Program, processes: int, home: Path) -> Any:  # noqa: ANN401
    from ringleader.cli.run_cluster import ClusterRun
    from ringleader.jobs.client.machine_choice import Wanted

    values = ctx.params
    trace = check_path(values["trace"]) if values["trace"] else None
    return ClusterRun(
        program=program,
        options=forwarded_options(ctx),
        trace=trace,
        processes=1 if values["survive"] else processes,
        wanted=Wanted(
            nodes=values["nodes"],
            on=_words(values["on"]),
            without=_words(values["without"]),
            rank0=values["rank0"],
        ),
        fetch=run_options.check_fetch(values["fetch"] or []),
        only_rank=values["only_rank"],
        is_quiet=values["quiet_ranks"],
        is_detached=values["detach"],
        only_prepares=bool(values["dry_run"])
        and not plans_by_itself(find_sources(program)),
        is_synced=not values["no_sync"],
        syncs_environment=values["sync_env"],
        home=home,
    )


def _words(text: str) -> list[str]:
    return [word.strip() for word in text.split(",") if word.strip()]
