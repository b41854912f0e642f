"""Every profile that --profile accepts has a timing, and no other name has."""

from __future__ import annotations

import pytest

from ringleader.errors import ConfigError
from ringleader.node.peering.membership_profiles import (
    MembershipProfile,
    membership_config,
)


def test_the_profiles_differ_in_how_soon_a_silent_machine_is_lost() -> None:
    dead_after_s = {
        name: membership_config(name).dead_after_s for name in [*MembershipProfile]
    }
    assert dead_after_s == {
        "loopback": 2.5,
        "lan": 3.5,
        "low_latency": 4.0,
        "wifi": 12.0,
        "wan": 30.0,
        "high_latency": 50.0,
    }


def test_an_unknown_profile_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ConfigError, match="unknown profile 'dsl'; choose one of lan"):
        membership_config("dsl")
