"""Links as values, and the rounds of measurements."""

from __future__ import annotations

import math

import msgspec
import pytest

from ringleader.topology.interface_kind import InterfaceKind
from ringleader.topology.link_profile import LinkProfile, measurement_rounds


def test_the_other_end_sees_the_link_mirrored() -> None:
    link = LinkProfile(1e-3, 10e6, 2e6, InterfaceKind.WIFI)
    assert link.mirrored() == LinkProfile(1e-3, 2e6, 10e6, InterfaceKind.WIFI)
    assert link.mirrored().mirrored() == link


@pytest.mark.parametrize(
    "values", [[-1, 1, 1], [1, -1, 1], [1, 1, 1e13], [math.nan, 1, 1], [1, math.inf, 1]]
)
def test_a_link_beyond_the_limits_is_refused(values: list[float]) -> None:
    names = ("latency_s", "out_bytes_per_s", "in_bytes_per_s")
    data = msgspec.msgpack.encode(dict(zip(names, values, strict=True)))
    with pytest.raises(msgspec.ValidationError):
        msgspec.msgpack.decode(data, type=LinkProfile)


@pytest.mark.parametrize("num_nodes", range(12))
def test_all_pairs_meet_once_and_nobody_is_at_two_places(num_nodes: int) -> None:
    schedule = measurement_rounds(num_nodes)
    pairs = sorted(pair for meeting in schedule for pair in meeting)
    assert pairs == [(a, b) for a in range(num_nodes) for b in range(a + 1, num_nodes)]
    for meeting in schedule:
        assert len({node for pair in meeting for node in pair}) == 2 * len(meeting)
    assert len(schedule) == (num_nodes - 1 + num_nodes % 2 if num_nodes > 1 else 0)
