"""Refusal of connections to other machines that nothing encrypts."""

from __future__ import annotations

import contextlib
import ipaddress
import socket
from collections.abc import Sequence

from ringleader.errors import ConfigError
from ringleader.transport.dialer import Endpoint
from ringleader.transport.tcp_socket import format_addresses

WAYS_OUT = (
    "start the job with 'ringleader run', which encrypts; or set RINGLEADER_TLS_CA, "
    "RINGLEADER_TLS_CERT and RINGLEADER_TLS_KEY on every machine "
    "(docs/certificates.md); or, on a network that you trust, set "
    "RINGLEADER_PLAINTEXT=1 on every machine"
)


def require_this_machine(endpoints: Sequence[Endpoint]) -> None:
    """Raise ConfigError if a rank is on another machine."""
    for rank, endpoint in enumerate(endpoints):
        if not all(is_own(host) for host, _ in endpoint.addresses):
            where = format_addresses(endpoint.addresses)
            text = f"rank {rank} is on another machine, at {where}, and nothing would"
            raise ConfigError(f"{text} encrypt the connection to it; {WAYS_OUT}")


def is_own(host: str) -> bool:
    """Return whether ``host`` is this machine: a socket can be bound to it."""
    with contextlib.suppress(OSError):
        found = socket.getaddrinfo(host, 0, type=socket.SOCK_DGRAM)
        return all(_can_bind(family, address) for family, _, _, _, address in found)
    return False


def _can_bind(family: int, address: tuple[object, ...]) -> bool:
    with contextlib.suppress(ValueError):
        if ipaddress.ip_address(str(address[0])).is_loopback:
            return True  # also ::1 where IPv6 is off
    with contextlib.suppress(OSError), socket.socket(family, socket.SOCK_DGRAM) as sock:
        sock.bind(address)
        return True
    return False
