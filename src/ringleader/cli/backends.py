"""``ringleader backends``: what can connect ranks on this machine, and why not."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Annotated

import typer


def backends(
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object.")
    ] = False,
) -> None:
    """Show which backends of torch and which links of Ringleader work here."""
    # Imported here: it imports torch, which --help does not need.
    from ringleader.backend.availability import backends as probe

    found = probe()
    if as_json:
        typer.echo(json.dumps({name: asdict(info) for name, info in found.items()}))
        return
    typer.echo("backends of torch.distributed")
    for info in found.values():
        typer.echo(f"  {info}")
    typer.echo("links between ranks of ringleader")
    for link in found["ringleader"].links:
        typer.echo(f"  {link}")
