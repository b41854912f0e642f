"""``job_fingerprint``: what must be equal on all machines of a job, as it is here."""

from __future__ import annotations

from importlib.metadata import version
from pathlib import Path

from ringleader import settings
from ringleader.node.launch.local_modules import file_hash, local_modules
from ringleader.node.launch.program import Program
from ringleader.node.protocol.hello import PROTOCOL
from ringleader.node.protocol.node_state import JobFingerprint
from ringleader.wire import hello as wire_hello


def job_fingerprint(program: Program | None) -> JobFingerprint:
    """Return the fingerprint of this machine; ``program`` None: they may differ."""
    return JobFingerprint(
        script=file_hash(Path(program.path).read_bytes()) if program else "",
        modules=local_modules(Path(program.path), program.root) if program else {},
        torch=version("torch"),
        ringleader=f"{PROTOCOL}.{wire_hello.VERSION}",
        compress=settings.compress() or "none",
        backend="ringleader" if settings.is_default_backend() else "the script's",
    )
