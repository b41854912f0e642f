"""Measuring links: everybody meets everybody, and one bad moment decides nothing."""

from __future__ import annotations

import pytest
import torch

from ringleader.groups.measure_links import (
    _fill_between_hosts,
    _meetings,
    _partners,
    _smooth,
)


@pytest.mark.parametrize("size", range(2, 18))
def test_everybody_meets_everybody_exactly_once(size: int) -> None:
    meetings = [_partners(rank, size) for rank in range(size)]
    for rank, partners in enumerate(meetings):
        assert sorted(partners) == [r for r in range(size) if r != rank]
        for partner in partners:
            assert rank in meetings[partner]


def test_links_about_as_fast_as_most_count_as_equal_and_slow_ones_do_not() -> None:
    size, head = 3, [0.0, 2.0, 0.0, 1e-5, 1e-5, 1e-5]
    speeds = [[1.0, 120.0, 83.0], [115.0, 1.0, 120.0], [120.0, 20.0, 1.0]]
    rows = [torch.tensor(head + row, dtype=torch.float64) for row in speeds]
    _smooth(rows, size)
    got = [row[3 + size :].tolist() for row in rows]
    assert (got[0][2], got[1][0]) == (got[0][1], got[0][1]), "noise is evened out"
    assert got[2][1] == 20.0, "a link that really is slow stays slow"


@pytest.mark.parametrize("hosts", [[7, 7, 9, 9], [7, 7, 7, 9], [9, 7, 9, 7, 5]])
def test_one_pair_measures_between_two_hosts(hosts: list[int]) -> None:
    """Two that measured at once between two hosts each saw half of the network card,
    and the hierarchy, which uses one link, was predicted to take twice its time."""
    meetings = [_meetings(rank, hosts) for rank in range(len(hosts))]
    pairs = {(a, b) for a, partners in enumerate(meetings) for b in partners}
    assert pairs == {(b, a) for a, b in pairs}
    across = [(a, b) for a, b in pairs if hosts[a] != hosts[b]]
    assert len(across) == len({(hosts[a], hosts[b]) for a, b in across})
    ranks = range(len(hosts))
    inside = {(a, b) for a in ranks for b in ranks if hosts[a] == hosts[b] and a != b}
    assert inside <= pairs
    assert len({(hosts[a], hosts[b]) for a, b in pairs}) == len(set(hosts)) ** 2 - (
        len([h for h in set(hosts) if hosts.count(h) == 1])
    )


def test_all_links_between_two_hosts_are_as_their_first_ranks_measured() -> None:
    size, unmeasured = 4, 1.0
    rows = [
        torch.full((3 + 2 * size,), unmeasured, dtype=torch.float64) for _ in "abcd"
    ]
    rows[0][3 + 2], rows[0][3 + size + 2] = 2e-4, 120.0
    rows[2][3 + 0], rows[2][3 + size + 0] = 3e-4, 110.0
    rows[0][3 + size + 1] = 9000.0
    _fill_between_hosts(rows, [7, 7, 9, 9])
    for a, b, latency_s, speed in [
        *((a, b, 2e-4, 120.0) for a in (0, 1) for b in (2, 3)),
        *((a, b, 3e-4, 110.0) for a in (2, 3) for b in (0, 1)),
    ]:
        assert rows[a][3 + b] == latency_s
        assert rows[a][3 + size + b] == speed
    assert rows[0][3 + size + 1] == 9000.0
