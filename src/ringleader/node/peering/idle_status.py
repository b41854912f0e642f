"""``idle_status``: what the files of this machine tell while no agent runs."""

from __future__ import annotations

import os
import socket
from importlib import metadata
from pathlib import Path

from ringleader import settings
from ringleader.errors import ConfigError
from ringleader.identity import cluster_secret, known_nodes
from ringleader.identity.node_key import first_key
from ringleader.identity.storage.home import Home
from ringleader.ids import NodeId
from ringleader.node.peering.status_query import StatusReport
from ringleader.node.protocol.snapshot import HealthCounts, NodeRow, Snapshot


def idle_status(home_path: Path) -> StatusReport:
    """Return the cluster, this machine and the nodes that paired with it.

    Raises ``ConfigError`` if this machine is in no cluster.
    """
    home = Home(home_path)
    cluster = cluster_secret.load(home)
    if cluster is None:
        raise ConfigError("this machine is in no cluster")
    here = first_key(home).node_id
    name = settings.node_name() or socket.gethostname()
    others = {n: each for n, each in known_nodes.load(home).items() if n != here}
    snapshot = Snapshot(
        cluster=cluster.title,
        node=here,
        epoch=0,
        leader="",
        ring=[],
        nodes=[
            _row(here, name, is_here=True),
            *(_row(node, known, is_here=False) for node, known in others.items()),
        ],
        health=HealthCounts(
            total=len(others),
            healthy=0,
            suspect=0,
            dead=0,
            unknown=len(others),
            percentage=0.0 if others else 100.0,
            is_healthy=True,
        ),
        troubles=[],
        rejected=0,
        pid=os.getpid(),
        uptime_s=0.0,
    )
    return StatusReport(f"the files of {name}", snapshot)


def _row(node: NodeId, name: str, *, is_here: bool) -> NodeRow:
    return NodeRow(
        node=node,
        name=name,
        health="not running" if is_here else "unknown",
        is_leader=False,
        is_here=is_here,
        in_view=False,
        address="",
        latency_s=None,
        clock_ahead_s=None,
        version=metadata.version("ringleader") if is_here else "",
        profile=None,
        links={},
        jobs=[],
    )
