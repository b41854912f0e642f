"""``own_addresses``: the addresses of this machine's interfaces."""

from __future__ import annotations

import contextlib
import socket
import struct

OUTSIDE = "192.0.2.1"
"""An address that no host has (RFC 5737); its route leads out of this machine."""
SIOCGIFADDR = 0x8915


def own_addresses() -> list[str]:
    """Return the IPv4 addresses of all interfaces, first that of the route out.

    That of loopback is in the list only if there is no other.
    """
    found = [
        address_towards(OUTSIDE, 9),
        *(_of(name) for _, name in socket.if_nameindex()),
    ]
    others = [each for each in dict.fromkeys(found) if each[:4] not in ("", "127.")]
    return others or ["127.0.0.1"]


def address_towards(host: str, port: int) -> str:
    """Return our address on the way to ``host``; empty if there is no way."""
    with contextlib.suppress(OSError):
        for family, kind, _, _, address in socket.getaddrinfo(
            host, port, type=socket.SOCK_DGRAM
        ):
            with contextlib.suppress(OSError), socket.socket(family, kind) as probe:
                probe.connect(address)  # sends nothing: it only looks up the route
                return str(probe.getsockname()[0])
    return ""


def _of(name: str) -> str:
    """Return the address of one interface; empty where it has none."""
    try:
        import fcntl
    except ImportError:  # Windows
        return ""
    request = struct.pack("256s", name.encode()[:15])
    with contextlib.suppress(OSError), socket.socket(type=socket.SOCK_DGRAM) as probe:
        answer = fcntl.ioctl(probe, SIOCGIFADDR, request)
        return socket.inet_ntoa(answer[20:24])
    return ""
