"""Options for the user's own certificates, shared by several commands."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ringleader import settings
from ringleader.errors import ConfigError
from ringleader.settings.tls_files import TlsFiles, tls_files

TlsCa = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="Your own authority's certificate (PEM), instead of the cluster's; or "
        "RINGLEADER_TLS_CA.",
    ),
]
TlsCert = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE", help="Certificate of this machine; or RINGLEADER_TLS_CERT."
    ),
]
TlsKey = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="Key of --tls-cert; or RINGLEADER_TLS_KEY."),
]


def use_tls(
    ca: Path | None, cert: Path | None, key: Path | None, *, plaintext: bool = False
) -> TlsFiles | None:
    """Check the user's certificates, and name them to the processes started later.

    Returns None if there are none. Raises ConfigError if they cannot be used.
    """
    files = tls_files(ca, cert, key)
    if files is None:
        return None
    if plaintext:
        text = "--plaintext and certificates of your own"
        raise ConfigError(f"{text}: encrypted or not? give only one of them")
    from ringleader.identity.certificates.pem_files import load  # slow to import

    load(files)
    settings.export(files.environment())
    return files
