"""``Facts``: what ``examine`` gathered, as plain values for the diagnosis rules."""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from ringleader.discovery.multicast_check import MulticastReport
from ringleader.doctor.firewall_command import Firewall
from ringleader.ids import Incarnation, NodeId, short
from ringleader.node.protocol.snapshot import Snapshot
from ringleader.topology.interfaces import Interface
from ringleader.topology.link_profile import LinkProfile
from ringleader.topology.port_owner import PortOwner

Address = tuple[str, int]
"""A numeric address and a port."""


class DialOutcome(StrEnum):
    """How far a connection attempt came; the furthest first."""

    REACHED = "reached"
    OTHER_VERSION = "speaks another version"
    FOREIGN = "has another secret"
    HUNG_UP = "closes the connection during the handshake"
    """So does a node with another secret, and one that is just ending."""
    STRANGE = "is not ringleader"
    STALLED = "accepts the connection and does not answer"
    REFUSED = "refuses the connection"
    SILENT = "does not answer"
    NO_HOST = "is not there"
    NO_ROUTE = "cannot be dialled from here"
    NO_DESCRIPTOR = "was not dialled: no free file descriptor"
    NO_TIME = "was not dialled: no time left"


FURTHEST = tuple(DialOutcome)


@dataclass(frozen=True, slots=True, kw_only=True)
class DialResult:
    """Result of dialling one address."""

    address: Address
    outcome: DialOutcome
    text: str = ""
    """Details for the user."""
    node: NodeId | None = None
    incarnation: Incarnation | None = None
    name: str = ""
    version: str = ""
    protocol: int = 0
    clock_ahead_s: float | None = None
    """How far its wall clock is ahead of ours."""
    needs_small_segments: bool = False
    """It was reached with small packets, and not with those of the usual size."""
    snapshot: Snapshot | None = None


class LinkOutcome(StrEnum):
    """Result of measuring a link."""

    MEASURED = "measured"
    STALLED = "stalled"
    """The connection opened, then nothing came through."""
    BLOCKED = "blocked"
    """The port that the other side opened for it cannot be reached."""
    FAILED = "failed"
    """It broke off with an error."""
    SKIPPED = "skipped"
    """The other side was busy, or there was no time."""


@dataclass(frozen=True, slots=True)
class LinkMeasurement:
    """One link, measured."""

    outcome: LinkOutcome
    profile: LinkProfile | None = None
    needs_small_segments: bool = False
    """Small packets come through, those of the usual size do not."""
    text: str = ""
    """Why it was not measured."""


class Source(StrEnum):
    """Source from which a candidate is known."""

    NAMED = "named"
    """By the user."""
    SEEN = "seen"
    """Announced by multicast, with our secret."""
    FOREIGN = "foreign"
    """Announced by multicast, with another secret."""
    MEMBER = "member"
    """An agent lists it as a member of the cluster."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Candidate:
    """A possible node, with the results of dialling all its addresses."""

    addresses: tuple[Address, ...]
    """All known addresses, also those that cannot be dialled from here."""
    sources: frozenset[Source]
    dials: tuple[DialResult, ...] = ()
    known_as: str = ""
    is_here: bool = False
    """Whether it runs on this machine."""
    is_heard: bool = False
    """Its multicast reached us, or ours reached it."""
    is_answering: bool = False
    """It answered our question by unicast: its packets do reach this machine."""
    link: LinkMeasurement | None = None
    trouble: str = ""
    """Why its name has no address."""

    @property
    def best(self) -> DialResult | None:
        """The dial that came furthest."""
        order = sorted(self.dials, key=lambda d: FURTHEST.index(d.outcome))
        return order[0] if order else None

    @property
    def outcome(self) -> DialOutcome | None:
        """Outcome of the best dial; None if there was nothing to dial."""
        return self.best.outcome if self.best else None

    @property
    def reached(self) -> list[DialResult]:
        """The dials that reached it."""
        return [d for d in self.dials if d.outcome is DialOutcome.REACHED]

    @property
    def system(self) -> str:
        """Name of its operating system; empty if unknown."""
        shots = [dial.snapshot for dial in self.reached if dial.snapshot is not None]
        rows = [row for shot in shots for row in shot.nodes if row.is_here]
        return next((row.profile.system for row in rows if row.profile), "")

    @property
    def where(self) -> str:
        """Its addresses, for the user."""
        formatted = ", ".join(format_address(address) for address in self.addresses)
        return formatted or self.known_as

    @property
    def title(self) -> str:
        """Name and id for the user, or else the address."""
        best = self.best
        if best is None or best.node is None:
            return self.known_as or self.where
        return f"{best.name} ({short(best.node)}) at {format_address(best.address)}"


def format_address(address: Address) -> str:
    """Format an address as ``host:port`` or ``[ipv6]:port``."""
    host, port = address
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


@dataclass(frozen=True, slots=True)
class Descriptors:
    """File descriptors of one process, or of the whole machine."""

    whose: str
    used: int
    limit: int


@dataclass(frozen=True, slots=True)
class SharedMemory:
    """Shared memory of this machine."""

    path: str
    """Mount point; empty if shared memory is no file system here."""
    free_bytes: int
    total_bytes: int
    trouble: str = ""
    """Why a segment could not be made."""


@dataclass(frozen=True, slots=True)
class TakenPort:
    """A port that ringleader needs and another program has."""

    port: int
    protocol: str
    holder: PortOwner | None
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """All facts about this machine and its peers."""

    name: str
    """Name of this machine."""
    version: str = ""
    protocol: int = 0
    cluster: str = ""
    """The cluster of this user; empty if in none."""
    has_own_certificates: bool = False
    """True if certificates of the user take the place of the cluster's secret."""
    own: frozenset[NodeId] = frozenset()
    """Nodes whose keys are on this machine."""
    chosen: Sequence[Interface] = ()
    refused: Sequence[tuple[Interface, str]] = ()
    multicast: Sequence[MulticastReport] = ()
    candidates: Sequence[Candidate] = ()
    agents: Sequence[Snapshot] = ()
    """Snapshots of the agents on this machine."""
    agent_trouble: str = ""
    taken: Sequence[TakenPort] = ()
    wanted_port: int = 0
    tensor_ports: range = range(1)
    """Ports on which ranks listen, as the user gave them; port 0: any free one."""
    firewall: Firewall | None = None
    """The firewall of this machine, if one was found."""
    descriptors: Sequence[Descriptors] = ()
    memory: SharedMemory | None = None
    now_s: float = 0.0
    """Wall clock of this machine, seconds since 1970."""
    took_s: float = field(default=0.0, compare=False)

    def interface_to(self, address: str) -> Interface | None:
        """Return the chosen interface whose network contains an address."""
        ip = ipaddress.ip_address(address)
        return next((each for each in self.chosen if each.holds(ip)), None)

    def network_of(self, address: str) -> str:
        """Return the network of ours that contains an address; empty if none does."""
        ip = ipaddress.ip_address(address)
        found = [a.network for each in self.chosen for a in each.addresses]
        return next((str(network) for network in found if ip in network), "")

    @property
    def families(self) -> set[int]:
        """IP versions (4, 6) of the addresses of this machine."""
        return {a.version for each in self.chosen for a in each.addresses}

    @property
    def members(self) -> list[Candidate]:
        """Nodes of our cluster on other machines that were reached."""
        return [c for c in self.candidates if c.reached and not c.is_here]
