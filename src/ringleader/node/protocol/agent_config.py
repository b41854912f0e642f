"""``AgentConfig``: the settings a process passes to the agent it starts."""

from __future__ import annotations

import hashlib
import re
import socket
from pathlib import Path

import msgspec

_RUN_DIRECTORY = "run"
_NAME_CHARACTERS = 20
"""The path of a Unix socket has at most 107 characters on Linux, 103 on macOS."""


def run_directory(home: Path) -> Path:
    """Return the directory for files that live as long as an agent of this machine.

    Machines may share a home, over NFS or as containers with a common volume. Each has
    a directory of its own, by host name, because it cannot tell whether an agent of
    another machine is alive.
    """
    host = socket.gethostname()
    readable = re.sub(r"[^A-Za-z0-9-]", "-", host)[:_NAME_CHARACTERS]
    digest = hashlib.sha256(host.encode()).hexdigest()[:6]
    return home / _RUN_DIRECTORY / f"{readable}-{digest}"


def metrics_directory(home: Path) -> Path:
    """Return where workers of this machine publish their metrics."""
    return run_directory(home) / "metrics"


def make_run_directory(home: Path) -> Path:
    """Return that directory; make it if needed, and close it to other users."""
    directory = run_directory(home)
    for path in (home, directory):  # mkdir gives the mode to the last folder only
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
    if directory.stat().st_mode & 0o077:
        directory.chmod(0o700)
    return directory


class AgentConfig(
    msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True
):
    """Settings of an agent process."""

    home: str
    peers: str = ""
    """host[:port],... of agents that mDNS does not find."""
    coordinator: str = ""
    """host:port of a coordinator to register at; empty: none."""
    worker_id: str = ""
    """Name under which to register there; empty: the node id."""
    plaintext: bool = False
    """Whether the coordinator is reached without TLS."""
    uses_mdns: bool = True
    """Whether to announce this node and to look for others by multicast."""
    interfaces: list[str] = []
    """Names of the network interfaces to use; empty: chosen automatically."""
    port: int = 0
    """Port to listen on; 0: ``AGENT_PORT``, or any free one if it is taken."""
    profile: str = "lan"
    """Timing of failure detection; see ``peering.membership_profiles``."""
    name: str = ""
    """Name shown to other nodes; empty: the host name."""
    is_resident: bool = False
    """Whether the agent was started by ``ringleader up`` and outlives its parent."""
    accepts_jobs: bool = False
    """Whether other machines of the cluster may run programs here as this user; only a
    resident agent can."""
    warm: bool = False
    """Whether a resident agent keeps a process with torch imported, which runs fork."""
    prints_events: bool = False
    """Whether the agent prints cluster events on standard error."""


CONFIG = msgspec.msgpack.Decoder(AgentConfig)
