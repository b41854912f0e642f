"""Host lists as MLX reads them."""

from __future__ import annotations

import json

import pytest

from ringleader.errors import ConfigError
from ringleader.topology.mlx_hostfile import MlxHost, format_hostfile, ring_hosts

PLACES = [MlxHost(f"mac{i}.local", f"192.168.1.{i}") for i in range(1, 5)]


def test_every_rank_gets_its_own_list() -> None:
    assert ring_hosts(PLACES, 0, 6000) == [
        "0.0.0.0:6000",
        "192.168.1.2:6000",
        "198.51.100.1:0",
        "192.168.1.4:6000",
    ]
    assert ring_hosts(PLACES[:2], 1, 6000) == ["192.168.1.1:6000", "0.0.0.0:6000"]
    assert ring_hosts(PLACES[:1], 0, 6000) == ["0.0.0.0:6000"]


def test_ranks_of_one_machine_get_ports_of_their_own() -> None:
    """All lists together: whoever dials a rank dials the port it listens on."""
    places = [PLACES[0], PLACES[0], PLACES[1], PLACES[0]]
    lists = [ring_hosts(places, rank, 6000) for rank in range(4)]
    own = [lists[rank][rank].rpartition(":")[2] for rank in range(4)]
    assert own == ["6000", "6001", "6000", "6002"]
    for rank in range(4):
        for side in ((rank - 1) % 4, (rank + 1) % 4):
            assert lists[side][rank] == f"{places[rank].address}:{own[rank]}"


def test_ipv6_addresses_are_bracketed() -> None:
    places = [MlxHost("a", "fd77::1"), MlxHost("b", "fd77::2")]
    assert ring_hosts(places, 0, 6000)[1] == "[fd77::2]:6000"


def test_the_file_has_the_shape_that_mlx_reads() -> None:
    hosts = json.loads(format_hostfile(PLACES[:2]))
    assert hosts == [
        {"ssh": "mac1.local", "ips": ["192.168.1.1"]},
        {"ssh": "mac2.local", "ips": ["192.168.1.2"]},
    ]


@pytest.mark.parametrize(("rank", "port"), [(4, 6000), (-1, 6000), (0, 0), (0, 65536)])
def test_what_cannot_be_is_refused(rank: int, port: int) -> None:
    with pytest.raises(ConfigError, match="MLX"):
        ring_hosts(PLACES, rank, port)
