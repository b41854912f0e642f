"""``Finding``: a problem the doctor reports, with its code and its fix."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Severity(StrEnum):
    """Severity of a finding."""

    ERROR = "error"
    """Some machines cannot work together."""
    WARNING = "warning"
    """It works, but worse than it could."""


class Code(StrEnum):
    """Kinds of findings, by names that programs may rely on."""

    NO_MULTICAST = "no_multicast"
    BLOCKED_PORT = "blocked_port"
    WRONG_SECRET = "wrong_secret"
    OTHER_VERSION = "other_version"
    CLOCK_SKEW = "clock_skew"
    CLONED_IDENTITY = "cloned_identity"
    ONLY_VIRTUAL = "only_virtual_interface"
    TWO_SUBNETS = "two_subnets"
    OTHER_FAMILY = "other_address_family"
    PORT_TAKEN = "port_taken"
    UNREACHABLE = "unreachable"
    SLOW_LINK = "slow_link"
    LINK_FAILED = "link_failed"
    MTU = "mtu"
    FEW_DESCRIPTORS = "few_descriptors"
    LITTLE_SHARED_MEMORY = "little_shared_memory"
    NO_CLUSTER = "no_cluster"
    LOST_NODE = "lost_node"
    NO_OTHER_NODE = "no_other_node"
    COORDINATOR_LOST = "coordinator_lost"


TITLES = {
    Code.NO_MULTICAST: "no multicast",
    Code.BLOCKED_PORT: "blocked port",
    Code.WRONG_SECRET: "wrong secret",
    Code.OTHER_VERSION: "other version",
    Code.CLOCK_SKEW: "clock skew",
    Code.CLONED_IDENTITY: "cloned identity",
    Code.ONLY_VIRTUAL: "no network except a VPN or a virtual one",
    Code.TWO_SUBNETS: "two interfaces on different subnets",
    Code.OTHER_FAMILY: "IPv4 here, IPv6 there",
    Code.PORT_TAKEN: "port taken",
    Code.UNREACHABLE: "known but not reachable",
    Code.SLOW_LINK: "slow link",
    Code.LINK_FAILED: "a link could not be measured",
    Code.MTU: "MTU problem",
    Code.FEW_DESCRIPTORS: "no free file descriptors",
    Code.LITTLE_SHARED_MEMORY: "not enough shared memory",
    Code.NO_CLUSTER: "in no cluster",
    Code.LOST_NODE: "a node was lost",
    Code.NO_OTHER_NODE: "no trace of another node",
    Code.COORDINATOR_LOST: "no coordinator",
}


@dataclass(frozen=True, slots=True)
class Finding:
    """One problem: what it is, which machines it concerns, what to do about it."""

    code: Code
    text: str
    """What is wrong, and with which machine."""
    mend: str
    """What to do, on which machine."""
    severity: Severity = Severity.ERROR

    @property
    def title(self) -> str:
        """Name of the problem, for the user."""
        return TITLES[self.code]
