"""Profiles of failure detection that users choose with ``--profile``."""

from __future__ import annotations

from enum import StrEnum

from ringleader.errors import ConfigError
from ringleader.membership.config import MembershipConfig


class MembershipProfile(StrEnum):
    """Names of the profiles."""

    LAN = "lan"
    WIFI = "wifi"
    WAN = "wan"
    LOOPBACK = "loopback"
    LOW_LATENCY = "low_latency"
    HIGH_LATENCY = "high_latency"


_CONFIGS = {
    MembershipProfile.LAN: MembershipConfig.for_lan,
    MembershipProfile.WIFI: MembershipConfig.for_wifi,
    MembershipProfile.WAN: MembershipConfig.for_wan,
    MembershipProfile.LOOPBACK: MembershipConfig.for_loopback,
    MembershipProfile.LOW_LATENCY: MembershipConfig.low_latency,
    MembershipProfile.HIGH_LATENCY: MembershipConfig.high_latency,
}


def membership_config(name: str) -> MembershipConfig:
    """Return the timing of a profile; raises ``ConfigError`` for an unknown name."""
    try:
        return _CONFIGS[MembershipProfile(name)]()
    except ValueError:
        names = ", ".join(MembershipProfile)
        raise ConfigError(f"unknown profile {name!r}; choose one of {names}") from None
