"""What the doctor has seen: plain values, gathered by ``examine``, judged by others."""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from ringleader.discovery.multicast_check import MulticastReport
from ringleader.ids import Incarnation, NodeId, short
from ringleader.node.protocol.snapshot import Snapshot
from ringleader.topology.interfaces import Interface
from ringleader.topology.link_profile import LinkProfile
from ringleader.topology.port_owner import PortOwner

Place = tuple[str, int]
"""A numeric address and a port."""


class Outcome(StrEnum):
    """How far a dial came; the furthest first."""

    REACHED = "reached"
    OTHER_VERSION = "speaks another version"
    FOREIGN = "has another secret"
    HUNG_UP = "hung up when we knocked"
    """What a node with another secret does, and one that is just ending."""
    STRANGE = "is not ringleader"
    STALLED = "takes the connection and says nothing"
    REFUSED = "refuses the connection"
    SILENT = "does not answer"
    NO_HOST = "is not there"
    NO_WAY = "cannot be dialled from here"
    NO_DESCRIPTOR = "was not dialled for want of a file descriptor"
    NO_TIME = "was not dialled for want of time"


FURTHEST = tuple(Outcome)


@dataclass(frozen=True, slots=True, kw_only=True)
class Visit:
    """One address, dialled."""

    place: Place
    outcome: Outcome
    text: str = ""
    """What exactly happened, in words."""
    node: NodeId | None = None
    incarnation: Incarnation | None = None
    name: str = ""
    version: str = ""
    protocol: int = 0
    clock_ahead_s: float | None = None
    """How far its wall clock is ahead of ours."""
    needs_small: bool = False
    """It was reached with small packets, and not with those of the usual size."""
    snapshot: Snapshot | None = None


class Pace(StrEnum):
    """What came of measuring a link."""

    MEASURED = "measured"
    STALLED = "stalled"
    """It opened, and then nothing came through."""
    BLOCKED = "blocked"
    """The port that the other side opened for it cannot be reached."""
    SKIPPED = "skipped"
    """The other side was busy, or there was no time."""


@dataclass(frozen=True, slots=True)
class Measurement:
    """One link, measured."""

    pace: Pace
    profile: LinkProfile | None = None
    needs_small: bool = False
    """Small packets come through, those of the usual size do not."""


class Source(StrEnum):
    """Why we look for a node."""

    NAMED = "named"
    """By the user."""
    SEEN = "seen"
    """Announced by multicast, with our secret."""
    FOREIGN = "foreign"
    """Announced by multicast, with another secret."""
    MEMBER = "member"
    """An agent says that it is in the cluster."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Candidate:
    """Somebody who may be a node, and what came of dialling all its addresses."""

    places: tuple[Place, ...]
    """All we heard of, also those that cannot be dialled from here."""
    sources: frozenset[Source]
    visits: tuple[Visit, ...] = ()
    known_as: str = ""
    is_here: bool = False
    """Whether it runs on this machine."""
    is_heard: bool = False
    """Its multicast reached us, or ours reached it."""
    is_answering: bool = False
    """It answered a question of ours, to us alone: its packets do get here."""
    link: Measurement | None = None
    trouble: str = ""
    """Why its name leads to no address."""

    @property
    def best(self) -> Visit | None:
        """The visit that came furthest."""
        order = sorted(self.visits, key=lambda v: FURTHEST.index(v.outcome))
        return order[0] if order else None

    @property
    def outcome(self) -> Outcome | None:
        """How far we came; None when there was nothing to dial."""
        return self.best.outcome if self.best else None

    @property
    def reached(self) -> list[Visit]:
        """The visits that got to it."""
        return [v for v in self.visits if v.outcome is Outcome.REACHED]

    @property
    def where(self) -> str:
        """Its addresses, for people."""
        return ", ".join(spell(place) for place in self.places) or self.known_as

    @property
    def title(self) -> str:
        """What people call it: name and id, or else the address."""
        best = self.best
        if best is None or best.node is None:
            return self.known_as or self.where
        return f"{best.name} ({short(best.node)}) at {spell(best.place)}"


def spell(place: Place) -> str:
    """An address as it is written: ``host:port`` or ``[ipv6]:port``."""
    host, port = place
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


@dataclass(frozen=True, slots=True)
class Descriptors:
    """File descriptors of one process, or of the whole machine."""

    whose: str
    used: int
    limit: int


@dataclass(frozen=True, slots=True)
class SharedMemory:
    """Memory that processes of this machine can share."""

    path: str
    """Where it is a file system; empty where it is not."""
    free_bytes: int
    total_bytes: int
    trouble: str = ""
    """Why a segment could not be made."""


@dataclass(frozen=True, slots=True)
class TakenPort:
    """A port that we need and cannot have."""

    port: int
    protocol: str
    holder: PortOwner | None
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """Everything the doctor has seen."""

    name: str
    """Of this machine."""
    version: str = ""
    protocol: int = 0
    cluster: str = ""
    """The cluster of this user; empty if in none."""
    own: frozenset[NodeId] = frozenset()
    """The nodes whose keys are ours."""
    chosen: Sequence[Interface] = ()
    refused: Sequence[tuple[Interface, str]] = ()
    probes: Sequence[MulticastReport] = ()
    candidates: Sequence[Candidate] = ()
    agents: Sequence[Snapshot] = ()
    agent_trouble: str = ""
    taken: Sequence[TakenPort] = ()
    wanted_port: int = 0
    descriptors: Sequence[Descriptors] = ()
    memory: SharedMemory | None = None
    took_s: float = field(default=0.0, compare=False)

    def interface_to(self, address: str) -> Interface | None:
        """The chosen interface in whose network an address lies."""
        ip = ipaddress.ip_address(address)
        return next((each for each in self.chosen if each.holds(ip)), None)

    @property
    def families(self) -> set[int]:
        """4, 6, or both: what the addresses of this machine are."""
        return {a.version for each in self.chosen for a in each.addresses}

    @property
    def members(self) -> list[Candidate]:
        """Nodes of our cluster on other machines that we reached."""
        return [c for c in self.candidates if c.reached and not c.is_here]
