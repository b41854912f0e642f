"""``job_fingerprint``: what must be equal on all machines of a job, as it is here."""

from __future__ import annotations

import hashlib
from importlib.metadata import version
from pathlib import Path

from ringleader import settings
from ringleader.node.protocol.hello import PROTOCOL
from ringleader.node.protocol.node_state import JobFingerprint
from ringleader.wire import hello as wire_hello


def job_fingerprint(script: str) -> JobFingerprint:
    """Return the fingerprint of this machine.

    ``script`` is the path of the program; empty if programs may differ.
    """
    return JobFingerprint(
        script=_hash(script) if script else "",
        torch=version("torch"),
        ringleader=f"{PROTOCOL}.{wire_hello.VERSION}",
        compress=settings.compress() or "none",
        backend="ringleader" if settings.is_default_backend() else "the script's",
    )


def _hash(script: str) -> str:
    """Hash a program, independent of its path and the platform's line ends."""
    text = Path(script).read_bytes().replace(b"\r\n", b"\n")
    return hashlib.sha256(text).hexdigest()[:16]
