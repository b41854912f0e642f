"""The ranks of a run that survives losses, without a command and without an agent."""

from __future__ import annotations

import os
from pathlib import Path

from ringleader.identity.cluster_secret import ClusterSecret
from ringleader.identity.secret_value import Secret
from ringleader.settings.run import RunSettings
from ringleader.testing.run_member import issue_credentials
from ringleader.transport.free_ports import free_ports


def environments(folder: Path, size: int) -> list[dict[str, str]]:
    """Return what ``ringleader run --survive`` and torch's launcher tell each rank."""
    cluster = ClusterSecret(root=Secret(os.urandom(32)))
    store, *ports = free_ports(1 + size)
    found = []
    for rank in range(size):
        run = RunSettings(
            job="training",
            is_joiner=False,
            credentials=str(issue_credentials(folder, cluster)[0]),
            peers=",".join(f"127.0.0.1:{port}" for port in ports),
            port=ports[rank],
            size=size,
        )
        torchs = {
            "RANK": str(rank),
            "WORLD_SIZE": str(size),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(store),
        }
        found.append({**run.environment(), **torchs})
    return found
