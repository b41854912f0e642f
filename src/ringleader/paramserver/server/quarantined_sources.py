"""Where quarantined workers came from, so that a new name does not free them at once.

A worker is only a random number, so quarantine follows the address that it joined
from: an IPv4 address, or the /64 network of an IPv6 address. After the n-th quarantine,
no new worker may join from there for ``FIRST_WAIT_S * 2**(n-1)`` seconds, and one that
joins later is quarantined by its first invalid update. Workers that had joined before
are not affected.

All workers behind a tunnel have the address of this machine, so it waits for seconds
only, and is open for as long before it can have to wait again: one of them cannot keep
all others out. Nor is any other address, which a household may share, shut out for
ever. Whoever has many addresses can join from each of them.
"""

from __future__ import annotations

import ipaddress
import math
from dataclasses import dataclass, field

FIRST_WAIT_S = 60.0
LONGEST_WAIT_S = 3600.0
SHARED_WAIT_S = 10.0
"""Wait of this machine's address, which all workers behind a tunnel share."""
_MAX_SOURCES = 1024
"""Addresses kept; the one whose wait ended first is forgotten."""


def source_of(host: str) -> str:
    """Return what identifies where a connection comes from; "" for this machine."""
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return host
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped:
        address = address.ipv4_mapped
    if address.is_loopback:
        return ""
    if address.version == 4:
        return str(address)
    return str(ipaddress.ip_network((address, 64), strict=False))


@dataclass(slots=True)
class QuarantinedSources:
    """The number of quarantines from each source, and until when it has to wait."""

    _sources: dict[str, tuple[int, float]] = field(default_factory=dict)

    def add(self, source: str, now_s: float) -> None:
        """Note that a worker from ``source`` was quarantined."""
        count, until_s = self._sources.get(source, (0, -math.inf))
        if not source and now_s < until_s + SHARED_WAIT_S:
            return
        wait_s = min(LONGEST_WAIT_S, FIRST_WAIT_S * 2.0 ** min(count, 16))
        if len(self._sources) >= _MAX_SOURCES:
            del self._sources[min(self._sources, key=lambda s: self._sources[s][1])]
        self._sources[source] = count + 1, now_s + (wait_s if source else SHARED_WAIT_S)

    def wait_s(self, source: str, now_s: float) -> int:
        """Return for how many seconds no new worker may join from ``source``."""
        until_s = self._sources.get(source, (0, now_s))[1]
        return max(0, math.ceil(until_s - now_s))

    def is_known(self, source: str) -> bool:
        """Return whether a worker from ``source`` was ever quarantined."""
        return source in self._sources
