"""``ringleader leave``: removes this machine from its cluster."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated

import typer

from ringleader import settings
from ringleader.cli.terminal import exit_on_error, is_interactive, prompt
from ringleader.errors import ConfigError

if TYPE_CHECKING:  # slow to import; --help needs none of them
    from ringleader.identity.storage.home import Home


def leave(
    yes: Annotated[
        bool, typer.Option("--yes", help="Do not ask for confirmation.")
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print JSON on standard output.")
    ] = False,
) -> None:
    """Remove this machine from its cluster.

    Deletes the cluster secret, the node keys and the list of known nodes
    here. Other machines are not changed.
    """
    from ringleader.identity import cluster_store
    from ringleader.identity.storage.home import Home

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
            "Copies of the secret stay valid: if this machine or a backup of it got\n"
            "into the wrong hands, make a new cluster on the other machines."
        )


def _confirm(home: Home, yes: bool) -> None:
    from ringleader.identity import cluster_secret

    if yes:
        return
    if not is_interactive():
        raise ConfigError("no terminal to ask for confirmation; pass --yes")
    cluster = None
    with suppress(ConfigError):  # a damaged secret is repaired by leaving
        cluster = cluster_secret.load(home)
    what = f"Leave cluster {cluster.title}" if cluster else "Delete this machine's keys"
    answer = prompt(f"{what}? [y/N] ", "nothing was deleted")
    if answer.reveal().strip().lower() not in ("y", "yes"):
        raise ConfigError("nothing was deleted")
