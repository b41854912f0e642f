"""``ringleader init``: makes a cluster with this machine as its first."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from ringleader import settings
from ringleader.cli.terminal import exit_on_error
from ringleader.errors import ConfigError
from ringleader.ids import short


def init(
    name: Annotated[
        str, typer.Option(help="Name of the cluster, for people.")
    ] = "home",
    force: Annotated[
        bool,
        typer.Option(
            "--force", help="Leave the cluster this machine is in, and make a new one."
        ),
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print JSON on standard output.")
    ] = False,
) -> None:
    """Make a cluster and print the phrase with which other machines join.

    Run it once, on the first machine. The phrase is shown only now.
    """
    from ringleader.identity import cluster_store, join_phrase
    from ringleader.identity.cluster_secret import ClusterSecret, clean_name
    from ringleader.identity.node_key import first_key
    from ringleader.identity.storage.home import Home

    with exit_on_error("init"):
        if not clean_name(name):
            raise ConfigError("--name: give a name with at least one letter")
        home = Home(settings.home_directory())
        if not force:
            cluster_store.check_not_joined(home)
        words = join_phrase.new()
        key = first_key(home)
        cluster = ClusterSecret.from_phrase(words, name=name)
        cluster = cluster.administered_by(key.node_id)
        cluster_store.store_cluster(home, cluster, replace=force)
    if as_json:
        found = {"cluster": cluster.name, "tag": cluster.tag, "node": key.node_id}
        typer.echo(json.dumps({**found, "phrase": words.show()}, indent=1))
        return
    typer.echo(f"Cluster {cluster.title} is made.", nl=False)
    typer.echo(f" This machine is node {short(key.node_id)}.\n")
    typer.echo("On every other machine run\n\n    ringleader join\n")
    typer.echo(f"and type this phrase:\n\n    {words.show()}\n")
    typer.echo(
        "It is not stored and cannot be shown again: write it down. To add a machine\n"
        "without it, run 'ringleader invite' here and 'ringleader join --pin' there."
    )
