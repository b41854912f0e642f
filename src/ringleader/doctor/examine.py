"""``examine``: gathers the facts about this machine, its network and its peers.

The doctor announces nothing and joins nothing. It asks by multicast which nodes are
there, dials every address of every node that was seen, named or known to an agent, and
measures the links. Everything ends with one deadline.
"""

from __future__ import annotations

import asyncio
import platform
import secrets
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from importlib import metadata
from pathlib import Path

from ringleader.deadline import Deadline
from ringleader.discovery.static_peers import StaticPeer
from ringleader.doctor import local_machine
from ringleader.doctor.facts import Facts
from ringleader.doctor.local_firewall import local_firewall
from ringleader.doctor.node_search import NodeSearch
from ringleader.errors import RingleaderError
from ringleader.identity import cluster_secret
from ringleader.identity.cluster_secret import ClusterSecret
from ringleader.identity.credentials import Credentials
from ringleader.identity.node_credentials import NodeCredentials
from ringleader.identity.node_key import NodeKey, first_key, key_files
from ringleader.identity.storage.home import Home
from ringleader.identity.user_credentials import UserCredentials
from ringleader.ids import Incarnation, NodeId
from ringleader.node.peering.peer_connection import HandshakeContext
from ringleader.node.peering.status_query import query_local_agents
from ringleader.node.protocol.hello import PROTOCOL, AgentHello
from ringleader.node.protocol.snapshot import Snapshot
from ringleader.settings.tls_files import tls_files
from ringleader.topology.interfaces import choose_interfaces, list_interfaces
from ringleader.topology.node_profile import clean

MAX_THREADS = 16
"""Enough to listen on all interfaces at once, in two address families each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """Scope and time limit of an examination."""

    home: Path
    peers: Sequence[StaticPeer] = ()
    interfaces: Sequence[str] = ()
    port: int = 0
    tensor_ports: range = range(1)
    seconds: float = 8.0


async def examine(request: Request) -> Facts:
    """Gather all facts. Takes two seconds on a machine without peers."""
    started_s = time.monotonic()
    threads = ThreadPoolExecutor(MAX_THREADS, "doctor")  # ended with the event loop
    asyncio.get_running_loop().set_default_executor(threads)
    deadline = Deadline.after(request.seconds)
    everything = list_interfaces()
    chosen, refused = choose_interfaces(everything, request.interfaces or None)
    home = Home(request.home)
    files = tls_files()
    cluster = (
        cluster_secret.load(home) if files is None else UserCredentials.load(files)
    )
    agents, agent_trouble = await _query_agents(home, cluster)
    pids = [snapshot.pid for snapshot in agents]
    local = Facts(
        name=_machine_name(agents),
        version=metadata.version("ringleader"),
        protocol=PROTOCOL,
        cluster=cluster.title if cluster else "",
        has_own_certificates=files is not None,
        own=frozenset(_own_nodes(home, cluster)),
        chosen=chosen,
        refused=refused,
        agents=agents,
        agent_trouble=agent_trouble,
        taken=local_machine.taken_ports(request.port, pids),
        wanted_port=request.port,
        tensor_ports=request.tensor_ports,
        firewall=await asyncio.to_thread(local_firewall),
        descriptors=local_machine.descriptors(pids),
        memory=local_machine.shared_memory(),
        now_s=time.time(),
    )
    local_machine.raise_descriptor_limit()
    own = {str(a.ip) for each in everything for a in each.addresses}
    handshake = _handshake(home, cluster, local)
    search = NodeSearch(local, own, cluster, handshake, deadline)
    await search.run(request.peers)
    return replace(
        local,
        multicast=search.multicast,
        candidates=search.candidates(),
        took_s=time.monotonic() - started_s,
    )


def _machine_name(agents: Sequence[Snapshot]) -> str:
    """Return the name by which other nodes know this machine."""
    names = [row.name for snapshot in agents for row in snapshot.nodes if row.is_here]
    return clean((names or [platform.node()])[0]) or "this machine"


async def _query_agents(
    home: Home, cluster: ClusterSecret | UserCredentials | None
) -> tuple[list[Snapshot], str]:
    """Return the snapshots of agents on this machine, and why there are none."""
    if cluster is None:
        return [], ""
    try:
        reports = await asyncio.to_thread(query_local_agents, home.path)
    except RingleaderError as exc:
        return [], str(exc)
    return [report.snapshot for report in reports], ""


def _own_nodes(
    home: Home, cluster: ClusterSecret | UserCredentials | None
) -> list[NodeId]:
    if isinstance(cluster, UserCredentials):
        return [cluster.node]
    texts = [home.read(name, 1024) for name in key_files(home)]
    keys = [NodeKey.from_text(text) for text in texts if text is not None]
    return [key.node_id for key in keys if key is not None]


def _handshake(
    home: Home, cluster: ClusterSecret | UserCredentials | None, local: Facts
) -> HandshakeContext | None:
    """Return a handshake as this machine's node, or with a new key if it has none."""
    if cluster is None:
        return None
    credentials: NodeCredentials
    if isinstance(cluster, UserCredentials):
        credentials = cluster
    else:
        key = first_key(home) if local.own else NodeKey.ephemeral()
        credentials = Credentials.issue(cluster, key)
    incarnation = Incarnation(secrets.token_hex(8))
    started_ms = time.time_ns() // 1_000_000

    def hello(purpose: str, subject: str) -> AgentHello:
        return AgentHello(
            protocol=PROTOCOL,
            version=local.version,
            purpose=purpose,
            node=credentials.node,
            incarnation=incarnation,
            started_ms=started_ms,
            name=local.name,
            port=0,
            clock_s=time.time(),
            subject=subject,
        )

    return HandshakeContext(credentials, hello)
