"""The ring in the words of Apple's MLX, for programs that use it beside torch.

MLX reads two kinds of files. ``mlx.launch --hostfile`` wants one for the whole cluster:
per rank how to reach it by ssh, and its addresses. Its ring backend, started without
the launcher, wants one per rank (``MLX_HOSTFILE``): the address of every rank, of which
it uses its own and the two beside it.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

from ringleader.errors import ConfigError

EVERYWHERE = "0.0.0.0"
"""Where we listen ourselves: on all interfaces."""

NOBODY = "198.51.100.1:0"
"""For ranks we never talk to: an address that nobody has (RFC 5737)."""

MAX_PORT = 65535


@dataclass(frozen=True, slots=True)
class MlxHost:
    """One rank, as MLX sees it."""

    name: str
    """How ssh reaches its host."""
    address: str


def ring_hosts(places: Sequence[MlxHost], rank: int, port: int) -> list[str]:
    """The ring as ``rank`` needs it: itself, its two sides, and nobody else.

    Ranks that share an address get successive ports, beginning with ``port``.
    """
    size = len(places)
    if not 0 <= rank < size:
        raise ConfigError(f"MLX: rank {rank} is not in a ring of {size}")
    ports = _ports(places, port)
    hosts = [NOBODY] * size
    for there in ((rank - 1) % size, (rank + 1) % size):
        hosts[there] = _join(places[there].address, ports[there])
    hosts[rank] = f"{EVERYWHERE}:{ports[rank]}"
    return hosts


def format_hostfile(places: Sequence[MlxHost]) -> str:
    """What ``mlx.launch --hostfile`` reads; ranks are numbered in this order."""
    hosts = [{"ssh": place.name, "ips": [place.address]} for place in places]
    return json.dumps(hosts, indent=2)


def _ports(places: Sequence[MlxHost], first: int) -> list[int]:
    used: dict[str, int] = {}
    ports = []
    for place in places:
        ports.append(used.get(place.address, first))
        used[place.address] = ports[-1] + 1
    if not (ports and first >= 1 and max(ports) <= MAX_PORT):
        raise ConfigError(f"MLX: ports from {first} on do not suffice; choose others")
    return ports


def _join(address: str, port: int) -> str:
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"
