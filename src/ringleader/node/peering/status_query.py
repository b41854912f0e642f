"""Looking at the cluster without taking part in it: what ``status`` does."""

from __future__ import annotations

import asyncio
import secrets
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from ringleader.deadline import Deadline
from ringleader.errors import ConfigError, PeerError, ProtocolError
from ringleader.identity import cluster_secret
from ringleader.identity.cluster_secret import ClusterSecret
from ringleader.identity.storage.home import Home
from ringleader.node.protocol.agent_client import running, visit
from ringleader.node.protocol.local_requests import Look, decode_reply
from ringleader.node.protocol.snapshot import Snapshot

LOOK_S = 2.0
LISTEN_S = 0.35
"""Agents answer a direct question at once; the rules of mDNS allow them longer."""

Address = tuple[str, int]


@dataclass(frozen=True, slots=True)
class Sight:
    """A snapshot and where it comes from."""

    source: str
    snapshot: Snapshot


def look(home: Path) -> list[Sight]:
    """What the agents of this machine know, or, if none runs, one on the network."""
    cluster = cluster_secret.load(Home(home))
    if cluster is None:
        text = "this machine is in no cluster; 'ringleader init' or 'ringleader join'"
        raise ConfigError(text)
    return _look_here(home) or _look_around(home, cluster)


def _look_here(home: Path) -> list[Sight]:
    found = []
    for path in running(home):
        deadline = Deadline.after(LOOK_S)
        conversation = visit(path, deadline)
        if conversation is None:
            continue
        try:
            reply = conversation.ask(Look(), deadline)
        except PeerError:
            continue  # it hangs; the others may not
        finally:
            conversation.close()
        if isinstance(reply, Snapshot):
            found.append(Sight(f"{_name(reply)}, process {reply.pid}", reply))
    return found


def _name(snapshot: Snapshot) -> str:
    return next(row.name for row in snapshot.nodes if row.is_here)


def _look_around(home: Path, cluster: ClusterSecret) -> list[Sight]:
    """Ask who is there, then ask the first that lets us in."""
    where = _seen(cluster)
    return asyncio.run(_ask_one(home, cluster, where)) if where else []


def _seen(cluster: ClusterSecret) -> list[list[Address]]:
    from ringleader.discovery.multicast_check import MulticastReport, check_multicast
    from ringleader.topology.interfaces import Interface, usable_interfaces

    chosen, _ = usable_interfaces()
    key = cluster.mdns_key().reveal()

    def listen(interface: Interface) -> MulticastReport:
        return check_multicast(interface, key=key, wait_s=LISTEN_S)

    if not chosen:
        return []
    with ThreadPoolExecutor(len(chosen)) as pool:
        probes = list(pool.map(listen, chosen))
    members = {seen.label: seen for probe in probes for seen in probe.members}
    return [[(a, seen.port) for a in seen.addresses] for seen in members.values()]


async def _ask_one(
    home: Path, cluster: ClusterSecret, where: list[list[Address]]
) -> list[Sight]:
    # Only here: TLS takes a while to import, and mostly an agent runs on this machine.
    from ringleader.identity.credentials import Credentials
    from ringleader.identity.node_key import first_key
    from ringleader.ids import Incarnation
    from ringleader.node.peering.connect import dial
    from ringleader.node.peering.peer_connection import Greeting
    from ringleader.node.protocol import framing

    credentials = Credentials.issue(cluster, first_key(Home(home)))

    def hello(purpose: str, subject: str) -> framing.Hello:
        return framing.Hello(
            protocol=framing.PROTOCOL,
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

    for addresses in where:
        try:
            async with asyncio.timeout(LOOK_S):
                greeting = Greeting(credentials, hello)
                guest = await dial(greeting, addresses, "status")
                try:
                    body = await framing.read(guest.reader, guest.node)
                finally:
                    guest.close()
                reply = decode_reply(body)
        except (PeerError, ProtocolError, TimeoutError):
            continue
        if isinstance(reply, Snapshot):
            return [Sight(f"{_name(reply)}, over the network", reply)]
    return []
