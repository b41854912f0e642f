"""``job_fingerprint``: what must be equal on all machines of a job, as it is here."""

from __future__ import annotations

from importlib.metadata import version

from ringleader import settings
from ringleader.node.launch.local_modules import LocalSources
from ringleader.node.protocol.hello import PROTOCOL
from ringleader.node.protocol.node_state import JobFingerprint
from ringleader.settings import DefaultBackend
from ringleader.wire import hello as wire_hello

_BACKENDS = {
    DefaultBackend.NONE: "the script's",
    DefaultBackend.UNNAMED: "the script's, ringleader if it names none",
    DefaultBackend.LIBRARIES: "ringleader, as the script names none",
    DefaultBackend.ALL: "ringleader",
}


def job_fingerprint(
    sources: LocalSources | None, *, survives: bool = False, partition: str = "continue"
) -> JobFingerprint:
    """Return the fingerprint of this machine; ``sources`` None: they may differ."""
    survive = "majority" if partition == "majority" else "yes"
    return JobFingerprint(
        script=sources.script_hash if sources else "",
        modules=sources.hashes() if sources else {},
        torch=version("torch"),
        ringleader=f"{PROTOCOL}.{wire_hello.VERSION}",
        compress=settings.compress() or "none",
        backend=_BACKENDS[settings.default_backend()],
        survive=survive if survives else "no",
    )
