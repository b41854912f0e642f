"""What ``ringleader serve`` prints when it begins: the join link, and how to use it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from ringleader.errors import ConfigError
from ringleader.identity.secret_value import Secret
from ringleader.identity.storage.private_file import write_private

if TYPE_CHECKING:  # slow to import; --help needs none of them
    from ringleader.paramserver.server.run import Run

LINK = "join-link"
"""The file with the join link, for ``ringleader work --server-file``."""


def announce(run: Run, where: str, *, is_pinned: bool) -> None:
    """Print the join link, and write it to a file that only this user can read.

    The link contains a secret code, so it must not go anywhere else.
    """
    from ringleader.paramserver.protocol import join_link

    admission, scheduler = run.app.training.admission, run.app.training.scheduler
    text = Secret(where)
    if is_pinned or not admission.is_open:
        fingerprint = run.key.fingerprint if is_pinned else None
        text = join_link.build(where, run.key.secret.reveal(), fingerprint)
    try:
        join_link.parse(text.reveal())
    except ConfigError as exc:
        raise ConfigError(f"--url {where}: {exc}") from None
    write_private(run.app.training.store.out / LINK, Secret(text.reveal().encode()))
    for note in run.notes:
        typer.echo(f"Warning: {note}", err=True)
    if scheduler.version:
        replayed = (
            f", {run.replayed} updates after the checkpoint" if run.replayed else ""
        )
        typer.echo(f"Resumed at version {scheduler.version}{replayed}.")
    if scheduler.is_finished:
        typer.echo("This run is finished. Increase --rounds, or choose another --out.")
    typer.echo(f"Status page: {where}/")
    typer.echo(f"Workers join with:\n\n    ringleader work '{text.reveal()}'\n")
    typer.echo("or with 'ringleader work' alone, which asks for the link.")
    if admission.pin is not None:
        typer.echo(f"or with: ringleader work {where} --pin -")
