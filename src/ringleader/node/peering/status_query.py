"""``query_status``: asks agents for snapshots without taking part in the cluster."""

from __future__ import annotations

import secrets
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ringleader.deadline import Deadline
from ringleader.errors import ConfigError, PeerError
from ringleader.identity import cluster_secret
from ringleader.identity.cluster_secret import ClusterSecret
from ringleader.identity.storage.home import Home
from ringleader.node.protocol.agent_client import agent_sockets, connect_to_agent
from ringleader.node.protocol.local_requests import GetSnapshot, decode_reply
from ringleader.node.protocol.snapshot import Snapshot
from ringleader.settings.tls_files import tls_files

if TYPE_CHECKING:
    from ringleader.identity.user_credentials import UserCredentials

QUERY_S = 2.0
"""Limit for the answer of one agent."""
LISTEN_S = 0.35
"""Agents answer a direct mDNS question at once, although the RFC allows them longer."""

Address = tuple[str, int]


@dataclass(frozen=True, slots=True)
class StatusReport:
    """A snapshot and the agent it comes from."""

    source: str
    snapshot: Snapshot


def query_status(home: Path) -> list[StatusReport]:
    """Ask all agents of this machine or, if none runs here, one on the network.

    Raises ``ConfigError`` if this machine is in no cluster.
    """
    if found := query_local_agents(home):
        return found
    cluster: ClusterSecret | UserCredentials | None = cluster_secret.load(Home(home))
    if (files := tls_files()) is not None:
        # Imported here: TLS is slow to import.
        from ringleader.identity import user_credentials

        cluster = user_credentials.UserCredentials.load(files)
    if cluster is None:
        raise ConfigError(
            "this machine is in no cluster; run 'ringleader init' or 'ringleader join'"
        )
    found = _query_network(home, cluster)
    if not found and files is not None:
        text = f"no agent with a certificate of {cluster.title} runs here, or answers"
        raise ConfigError(f"{text} on this network")
    return found


def query_local_agents(home: Path) -> list[StatusReport]:
    """Ask all agents of this machine."""
    found = []
    for path in agent_sockets(home):
        deadline = Deadline.after(QUERY_S)
        agent = connect_to_agent(path, deadline)
        if agent is None:
            continue
        try:
            reply = agent.ask(GetSnapshot(), deadline)
        except PeerError:
            continue  # this agent hangs; others may answer
        finally:
            agent.close()
        if isinstance(reply, Snapshot):
            source = f"{_name(reply)}, process {reply.pid}"
            found.append(StatusReport(source, reply))
    return found


def _name(snapshot: Snapshot) -> str:
    return next(row.name for row in snapshot.nodes if row.is_here)


def _query_network(
    home: Path, cluster: ClusterSecret | UserCredentials
) -> list[StatusReport]:
    """Look for agents by multicast and ask the first that accepts a connection."""
    import asyncio

    found = _find_agents(cluster)
    return asyncio.run(_query_first(home, cluster, found)) if found else []


def _find_agents(cluster: ClusterSecret | UserCredentials) -> list[list[Address]]:
    """Return the addresses of each agent that announces itself."""
    from concurrent.futures import ThreadPoolExecutor

    from ringleader.discovery.multicast_check import MulticastReport, check_multicast
    from ringleader.topology.interfaces import Interface, usable_interfaces

    chosen, _ = usable_interfaces()
    key = cluster.mdns_key().reveal()

    def listen(interface: Interface) -> MulticastReport:
        return check_multicast(interface, key=key, wait_s=LISTEN_S)

    if not chosen:
        return []
    with ThreadPoolExecutor(len(chosen)) as pool:
        reports = list(pool.map(listen, chosen))
    members = {seen.label: seen for report in reports for seen in report.members}
    return [[(a, seen.port) for a in seen.addresses] for seen in members.values()]


async def _query_first(
    home: Path, cluster: ClusterSecret | UserCredentials, agents: list[list[Address]]
) -> list[StatusReport]:
    # Imported here: TLS is slow to import, and mostly an agent runs on this machine.
    import asyncio

    from ringleader.identity.credentials import Credentials
    from ringleader.identity.node_credentials import NodeCredentials
    from ringleader.identity.node_key import first_key
    from ringleader.ids import Incarnation
    from ringleader.node.peering.connect import connect
    from ringleader.node.peering.peer_connection import HandshakeContext
    from ringleader.node.protocol import framing
    from ringleader.node.protocol.hello import PROTOCOL, AgentHello, Purpose

    credentials: NodeCredentials
    if isinstance(cluster, ClusterSecret):
        credentials = Credentials.issue(cluster, first_key(Home(home)))
    else:
        credentials = cluster

    def hello(purpose: str, subject: str) -> AgentHello:
        return AgentHello(
            protocol=PROTOCOL,
            version="",
            purpose=purpose,
            node=credentials.node,
            incarnation=Incarnation(secrets.token_hex(8)),
            started_ms=0,
            name="",
            port=0,
            clock_s=time.time(),
            subject=subject,
        )

    handshake = HandshakeContext(credentials, hello)
    for addresses in agents:
        try:
            async with asyncio.timeout(QUERY_S):
                connection = await connect(handshake, addresses, Purpose.STATUS)
                try:
                    body = await framing.read(connection.reader, connection.node)
                finally:
                    connection.close()
                reply = decode_reply(body)
        except (PeerError, TimeoutError):
            continue
        if isinstance(reply, Snapshot):
            return [StatusReport(f"{_name(reply)}, over the network", reply)]
    return []
