"""``job_fingerprint``: what must be equal on all machines of a job, as it is here."""

from __future__ import annotations

from importlib.metadata import version

from ringleader import settings
from ringleader.node.launch.local_modules import LocalSources
from ringleader.node.protocol.hello import PROTOCOL
from ringleader.node.protocol.node_state import JobFingerprint
from ringleader.wire import hello as wire_hello


def job_fingerprint(
    sources: LocalSources | None, *, survives: bool = False
) -> JobFingerprint:
    """Return the fingerprint of this machine; ``sources`` None: they may differ."""
    return JobFingerprint(
        script=sources.script_hash if sources else "",
        modules=sources.hashes() if sources else {},
        torch=version("torch"),
        ringleader=f"{PROTOCOL}.{wire_hello.VERSION}",
        compress=settings.compress() or "none",
        backend="ringleader" if settings.is_default_backend() else "the script's",
        survive="yes" if survives else "no",
    )
