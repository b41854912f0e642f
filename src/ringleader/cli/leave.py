"""``ringleader leave``: forget the cluster on this machine."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Annotated

import typer

from ringleader import settings
from ringleader.cli.terminal import exit_on_error, is_interactive, prompt
from ringleader.errors import ConfigError
from ringleader.identity import cluster_secret, cluster_store
from ringleader.identity.storage.home import Home


def leave(
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="JSON on standard output.")
    ] = False,
) -> None:
    """Delete the secret, the keys and the known nodes of this machine."""
    with exit_on_error("leave"):
        home = Home(settings.home_directory())
        _confirm(home, yes)
        left = cluster_store.forget_cluster(home)
    if as_json:
        typer.echo(json.dumps({"left": left.tag if left else None}))
        return
    what = f"Left cluster {left.title}." if left else "This machine was in no cluster."
    typer.echo(f"{what} Secret, keys and known nodes are deleted here.")
    if left:
        typer.echo(
            "Whoever copied the secret before still has it: if this machine, or a\n"
            "backup of it, got into wrong hands, make a new cluster on the others."
        )


def _confirm(home: Home, yes: bool) -> None:
    if yes:
        return
    if not is_interactive():
        raise ConfigError("nobody to ask; pass --yes")
    cluster = None
    with suppress(ConfigError):  # damaged: leaving is how it is mended
        cluster = cluster_secret.load(home)
    what = f"Leave cluster {cluster.title}" if cluster else "Delete this machine's keys"
    answer = prompt(f"{what}? [y/N] ", "nothing was deleted")
    if answer.reveal().strip().lower() not in ("y", "yes"):
        raise ConfigError("nothing was deleted")
