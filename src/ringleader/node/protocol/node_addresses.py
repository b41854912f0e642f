"""``NodeAddresses``: where a node can be dialled, as another member tells it.

Hints only: the handshake proves which node answers at an address.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable
from typing import Annotated

import msgspec

from ringleader.errors import ProtocolError

MAX_ADDRESSES = 16
MAX_REPLY_BYTES = 4096
"""Sixteen addresses of IPv6 take 1 KiB."""

Host = Annotated[str, msgspec.Meta(max_length=64)]
Port = Annotated[int, msgspec.Meta(ge=1, le=65535)]


class NodeAddresses(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Answer to ``Purpose.ADDRESSES``; empty if the node is not known."""

    addresses: Annotated[
        list[tuple[Host, Port]], msgspec.Meta(max_length=MAX_ADDRESSES)
    ] = []


_DECODER = msgspec.msgpack.Decoder(NodeAddresses)


def decode_addresses(body: bytes, who: str) -> NodeAddresses:
    """Decode an answer; raises ``ProtocolError``."""
    try:
        return _DECODER.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as exc:
        raise ProtocolError(who, f"sent invalid addresses ({exc})") from exc


def is_loopback(host: str) -> bool:
    """Return whether ``host`` is an IP address that every machine has for itself."""
    address = _parse(host)
    return address is not None and address.is_loopback


def can_dial(host: str) -> bool:
    """Return whether ``host`` is the IP address of one machine.

    A name would make this machine ask name servers for whatever a peer says, and a
    scope such as ``%eth0`` has a meaning on one machine only.
    """
    address = _parse(host)
    if address is None or "%" in host:
        return False
    return not (address.is_multicast or address.is_unspecified)


def dialable(
    addresses: Iterable[tuple[str, int]], *, told_by: str
) -> list[tuple[str, int]]:
    """Return the addresses worth dialling of those that the peer at ``told_by`` tells.

    A loopback address is meant only for processes on the machine of that peer.
    """
    is_here = is_loopback(told_by)
    usable = (each for each in addresses if can_dial(each[0]))
    return [each for each in usable if is_here or not is_loopback(each[0])]


def _parse(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None
