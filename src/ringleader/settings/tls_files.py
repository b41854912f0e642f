"""TlsFiles: the user's own certificates, from options or the environment."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ringleader.errors import ConfigError

OPTIONS = ("--tls-ca", "--tls-cert", "--tls-key")
VARIABLES = ("RINGLEADER_TLS_CA", "RINGLEADER_TLS_CERT", "RINGLEADER_TLS_KEY")


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """Paths of the user's own certificates, in PEM."""

    ca: Path
    """Certificates of the authorities that sign for the cluster."""
    cert: Path
    """Certificate of this machine, and intermediate ones after it."""
    key: Path
    """Private key of the certificate, not encrypted."""

    def environment(self) -> dict[str, str]:
        """Return the variables that name these files to other processes."""
        files = (self.ca, self.cert, self.key)
        paths = [str(file.absolute()) for file in files]
        return dict(zip(VARIABLES, paths, strict=True))


def tls_files(
    ca: Path | None = None,
    cert: Path | None = None,
    key: Path | None = None,
    *,
    env: Mapping[str, str] | None = None,
) -> TlsFiles | None:
    """Return the files of the user's certificates: as given, else RINGLEADER_TLS_*.

    None if there are none. Raises ConfigError if some of the three are missing.
    """
    env = os.environ if env is None else env
    names, given = OPTIONS, [ca, cert, key]
    if not any(given):
        names = VARIABLES
        given = [Path(env[name]) if env.get(name) else None for name in names]
    found = [path for path in given if path is not None]
    if not found:
        return None
    missing = [name for name, path in zip(names, given, strict=True) if path is None]
    if missing:
        text = f"{' and '.join(missing)} missing: give all of {', '.join(names)}"
        raise ConfigError(f"{text}, or none of them")
    return TlsFiles(*found)
