"""The network of a client, for limits that hold per address."""

from __future__ import annotations

import ipaddress

_PREFIX = 64
"""Bits of IPv6 addresses that count: a customer has at least 2^64 addresses."""


def network_of(host: str) -> str:
    """Return an IPv4 address as it is, and the network of an IPv6 address."""
    if ":" not in host:
        return host
    address = ipaddress.IPv6Address(host.partition("%")[0])
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    if address.is_loopback:
        return host
    network = ipaddress.IPv6Network((address, _PREFIX), strict=False)
    return str(network.network_address)


def is_loopback(host: str) -> bool:
    """Return whether a client is on this machine."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
