"""NodeRecord is what a node announces by mDNS; the checks on it are here too. Pure.

A record is a random label, a port and up to four addresses, under a tag that only
members of the cluster can make. The label is new at every start and on every network:
it salts the tag, so that nobody can track a machine from one network to the next, and
no clock is needed. Names, node ids and versions are exchanged later, inside TLS.
"""

from __future__ import annotations

import base64
import binascii
import hmac
import ipaddress
import re
import socket
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

from ringleader.topology.interfaces import Interface, Ip

SERVICE = "_ringleader._tcp.local."
VERSION = b"1"

MAX_ADDRESSES = 4
"""Two cards with IPv4 and IPv6 each; a record must fit one packet."""

MAX_TXT_BYTES = 400
"""Ours has at most 230; a longer one is not honest."""

TAG_BYTES = 12
"""96 bits: guesses can only be made online, one packet each."""

MIN_PORT = 1024
"""Lower ports belong to services of the system; a node never listens there."""

KEY_BYTES = 32
_MAPPED = bytes(10) + b"\xff\xff"
_LABEL = re.compile(r"[a-z0-9]{8,32}")


class RecordRefusal(StrEnum):
    """Why a record is not used."""

    MALFORMED = "malformed"
    OTHER_VERSION = "of another version"
    FOREIGN = "of another cluster, or forged"
    ELSEWHERE = "on no network of ours"
    OURSELVES = "our own"


@dataclass(frozen=True, slots=True)
class NodeRecord:
    """One announcement: a node's label on this network and where it listens."""

    label: str
    port: int
    addresses: tuple[str, ...]
    tag: bytes


def new_label(random: bytes) -> str:
    """Return a label of 16 letters and digits from ten random bytes."""
    assert len(random) == 10, "80 bits make 16 characters of base32"
    return base64.b32encode(random).decode().lower()


def sign(label: str, port: int, addresses: Sequence[str], key: bytes) -> NodeRecord:
    """Return the record that members of the cluster with ``key`` accept."""
    assert len(key) == KEY_BYTES, "the key is derived from the cluster's secret"
    assert 0 < len(addresses) <= MAX_ADDRESSES, "one to four addresses"
    tag = _tag(key, label, port, addresses)
    return NodeRecord(label, port, tuple(addresses), tag)


def _tag(key: bytes, label: str, port: int, addresses: Sequence[str]) -> bytes:
    packed = sorted(_pack(text) for text in addresses)
    # Each address with its length: four IPv4 must not read as one IPv6 address.
    body = b"".join(bytes([len(part)]) + part for part in packed)
    text = b"mdns1\0" + label.encode() + b"\0" + port.to_bytes(2, "big") + body
    return hmac.digest(key, text, "sha256")[:TAG_BYTES]


def is_genuine(record: NodeRecord, key: bytes) -> bool:
    """Return whether a member of the cluster made the record; costs one HMAC."""
    tag = _tag(key, record.label, record.port, record.addresses)
    return hmac.compare_digest(tag, record.tag)


def encode(record: NodeRecord) -> bytes:
    """Return the TXT record: strings with one length byte each."""
    tag = _base32(record.tag)
    where = ",".join(record.addresses).encode()
    parts = (b"v=" + VERSION, b"a=" + where, b"t=" + tag)
    return b"".join(bytes([len(part)]) + part for part in parts)


def decode(label: str, port: int, txt: bytes) -> NodeRecord | RecordRefusal:
    """Return the record in a label, its SRV port and its TXT, if it is well formed."""
    if not _LABEL.fullmatch(label) or not MIN_PORT <= port <= 65535:
        return RecordRefusal.MALFORMED
    if len(txt) > MAX_TXT_BYTES:
        return RecordRefusal.MALFORMED
    fields = dict(_fields(txt))
    if b"v" in fields and fields[b"v"] != VERSION:
        return RecordRefusal.OTHER_VERSION
    addresses = _addresses(fields.get(b"a", b""))
    tag = _unbase32(fields.get(b"t", b""))
    if b"v" not in fields or not addresses or len(tag) != TAG_BYTES:
        return RecordRefusal.MALFORMED
    return NodeRecord(label, port, addresses, tag)


def _fields(txt: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Yield ``key=value`` of each string, up to the first that is cut off."""
    at = 0
    while at < len(txt):
        end = at + 1 + txt[at]
        if end > len(txt):
            return
        name, _, value = txt[at + 1 : end].partition(b"=")
        yield name, value
        at = end


def _addresses(value: bytes) -> tuple[str, ...]:
    """Return one to four different addresses in canonical form; else nothing."""
    texts = value.split(b",", MAX_ADDRESSES)
    found = tuple(ip for text in texts if (ip := _address(text)) is not None)
    is_whole = len(found) == len(texts) <= MAX_ADDRESSES
    return found if is_whole and len(set(found)) == len(found) else ()


def _address(value: bytes) -> str | None:
    try:
        text = value.decode("ascii")
        packed = _pack(text)
    except (ValueError, OSError):
        return None
    # One spelling per address, and no IPv4-mapped IPv6 address.
    is_plain = socket.inet_ntop(_family(text), packed) == text
    return text if is_plain and not packed.startswith(_MAPPED) else None


def _pack(text: str) -> bytes:
    # inet_pton takes a tenth of the time of ipaddress; it runs once per record, and
    # records may come as a flood.
    return socket.inet_pton(_family(text), text)


def _family(text: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in text else socket.AF_INET


def _unbase32(text: bytes) -> bytes:
    """Decode lower-case base32 without padding; empty if it is not that."""
    try:
        found = base64.b32decode(text.upper() + b"=" * (-len(text) % 8))
    except (binascii.Error, ValueError):
        return b""
    return found if _base32(found) == text else b""


def _base32(value: bytes) -> bytes:
    return base64.b32encode(value).rstrip(b"=").lower()


def addresses_on_networks(
    record: NodeRecord, chosen: Sequence[Interface]
) -> tuple[str, ...]:
    """Return the record's addresses on networks of chosen interfaces; only those are
    dialed."""
    return tuple(
        text
        for text in record.addresses
        if _is_on_network(ipaddress.ip_address(text), chosen)
    )


def _is_on_network(ip: Ip, chosen: Sequence[Interface]) -> bool:
    return any(interface.holds(ip) for interface in chosen)


def addresses_to_announce(chosen: Sequence[Interface]) -> list[str]:
    """Return where we can be reached: each interface once, then its other family.

    An interface with many addresses must not displace the next interface.
    """
    queues = [
        [str(a.ip) for a in interface.addresses if a.version == version]
        for version in (4, 6)
        for interface in chosen
    ]
    turns = range(max(map(len, queues), default=0))
    found = [queue[turn] for turn in turns for queue in queues if turn < len(queue)]
    return list(dict.fromkeys(found))[:MAX_ADDRESSES]
