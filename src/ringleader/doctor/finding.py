"""What the doctor can find: the troubles it knows by name."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Severity(StrEnum):
    """How much a trouble hinders."""

    ERROR = "error"
    """Machines do not come together, or not all of them."""
    WARNING = "warning"
    """It works, but worse than it could."""


class Code(StrEnum):
    """The troubles, by names that programs may rely on."""

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
    MTU = "mtu"
    FEW_DESCRIPTORS = "few_descriptors"
    LITTLE_SHARED_MEMORY = "little_shared_memory"
    NO_CLUSTER = "no_cluster"


TITLES = {
    Code.NO_MULTICAST: "no multicast",
    Code.BLOCKED_PORT: "blocked port",
    Code.WRONG_SECRET: "wrong secret",
    Code.OTHER_VERSION: "other version",
    Code.CLOCK_SKEW: "clock skew",
    Code.CLONED_IDENTITY: "cloned identity",
    Code.ONLY_VIRTUAL: "no network but a VPN or a virtual one",
    Code.TWO_SUBNETS: "two interfaces on different subnets",
    Code.OTHER_FAMILY: "IPv4 here, IPv6 there",
    Code.PORT_TAKEN: "port taken",
    Code.UNREACHABLE: "known but not reachable",
    Code.SLOW_LINK: "slow link",
    Code.MTU: "MTU trouble",
    Code.FEW_DESCRIPTORS: "no free file descriptors",
    Code.LITTLE_SHARED_MEMORY: "not enough shared memory",
    Code.NO_CLUSTER: "in no cluster",
}


@dataclass(frozen=True, slots=True)
class Finding:
    """One trouble: what it is, whom it concerns, and what to do about it."""

    code: Code
    text: str
    """What is wrong, and with whom."""
    mend: str
    """What to do, on which machine."""
    severity: Severity = Severity.ERROR

    @property
    def title(self) -> str:
        """The name of the trouble, for people."""
        return TITLES[self.code]
