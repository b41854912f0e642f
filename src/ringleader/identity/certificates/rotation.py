"""RotatingPem: certificates that are read again when their files change."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from ringleader.errors import ConfigError
from ringleader.identity.certificates import pem_files
from ringleader.identity.certificates.pem import PemCredentials
from ringleader.settings.tls_files import TlsFiles

CHECK_EVERY_S = 1.0
"""How often at most to look at the files; a handshake is far more expensive."""

_Signature = tuple[tuple[int, int, int] | None, ...]


def print_event(text: str) -> None:
    """Tell the user on standard error."""
    sys.stderr.write(f"ringleader: {text}\n")
    sys.stderr.flush()


class RotatingPem:
    """Credentials in files that may be replaced while the process runs.

    ``current`` returns the same object until the files have changed. If the new files
    cannot be used, for example because only one of them is written yet, the old
    credentials stay in use, ``report`` says so once, and the new ones are tried again:
    they may not be valid yet, or the disk may be full. Any thread may call it.
    """

    def __init__(
        self,
        paths: Sequence[Path],
        load: Callable[[], PemCredentials],
        report: Callable[[str], None] = print_event,
    ) -> None:
        self._paths = tuple(paths)
        self._load = load
        self._report = report
        self._lock = threading.Lock()
        self._seen = self._signature()
        self._reported: _Signature | None = None
        """Files that cannot be used, of which the user was told."""
        self._next_check_s = time.monotonic() + CHECK_EVERY_S
        self._current = load()

    @classmethod
    def of(
        cls, files: TlsFiles, report: Callable[[str], None] = print_event
    ) -> RotatingPem:
        """Return the user's credentials; ConfigError if they cannot be used now."""
        paths = (files.ca, files.cert, files.key)
        return cls(paths, lambda: pem_files.load(files), report)

    @classmethod
    def of_server(
        cls, cert: Path, key: Path, report: Callable[[str], None] = print_event
    ) -> RotatingPem:
        """Return a certificate of a server whose clients show none."""
        return cls((cert, key), lambda: pem_files.load_server(cert, key), report)

    def current(self) -> PemCredentials:
        """Return the credentials to use for the next handshake."""
        with self._lock:
            if time.monotonic() >= self._next_check_s:
                self._next_check_s = time.monotonic() + CHECK_EVERY_S
                self._refresh()
            return self._current

    def _refresh(self) -> None:
        found = self._signature()
        if found == self._seen:
            return
        try:
            self._current = self._load()
        except (ConfigError, OSError) as exc:
            if found != self._reported:
                self._report(f"{exc}; the certificate read before stays in use")
            self._reported = found
        else:
            self._seen = found
            self._report(f"{self._paths[-2]}: read the new certificate")

    def _signature(self) -> _Signature:
        return tuple(_signature(path) for path in self._paths)


def _signature(path: Path) -> tuple[int, int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino
