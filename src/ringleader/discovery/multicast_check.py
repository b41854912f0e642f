"""A look at the network for the doctor: does multicast work, and who announces what.

Three sockets tell three things apart. The listener has the port and the group of mDNS:
what it receives was multicast. The asker has a port of its own, so that the answers to
its multicast question come back to it alone: whoever answers has heard our multicast.
The caller asks known addresses directly: whoever answers only there is reachable, and
the multicast between us is lost.
"""

from __future__ import annotations

import secrets
import selectors
import socket
import struct
import sys
from collections.abc import Iterable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field

from zeroconf import (  # type: ignore[attr-defined]  # kept for users, not in __all__
    DNSIncoming,
    DNSService,
    DNSText,
)

from ringleader.deadline import Deadline
from ringleader.discovery.multicast import (
    GROUP4,
    GROUP6,
    PORT,
    DiscoveryUnavailable,
    UnavailableReason,
    allow_port_sharing,
    build_query,
    port_trouble,
)
from ringleader.discovery.record import (
    SERVICE,
    NodeRecord,
    RecordRefusal,
    decode,
    is_genuine,
)
from ringleader.topology.interfaces import Interface

ANY_SERVICE = "_services._dns-sd._udp.local."
"""Every mDNS responder answers this: printers, televisions, phones."""

MAX_PACKETS = 1000
MAX_SEEN = 64
MAX_HOSTS = 256
MAX_PACKET_BYTES = 9000

_IP_MULTICAST_ALL = 49
"""Linux: 0 means only from interfaces that this socket joined; not in ``socket``."""


@dataclass(frozen=True, slots=True)
class SeenNode:
    """One announcement of a node; ``refusal`` is None for a member of our cluster."""

    source: str
    label: str
    addresses: tuple[str, ...]
    refusal: RecordRefusal | None
    port: int = 0
    """Where it listens, if the record says so."""


@dataclass(slots=True, kw_only=True)
class MulticastReport:
    """What multicast does on one interface."""

    interface: str
    loops_back: bool = False
    """Our own question came back to us; not even that: a firewall on this host."""

    heard: set[str] = field(default_factory=set)
    """Other hosts whose multicast reached us, of whatever program."""

    answered: set[str] = field(default_factory=set)
    """Other hosts that our multicast reached."""

    answered_directly: set[str] = field(default_factory=set)
    """Of the addresses to call, those that answered there."""

    seen: dict[str, SeenNode] = field(default_factory=dict)
    """Nodes by label, our own too when it runs."""

    trouble: DiscoveryUnavailable | None = None
    """Why the probe itself could not be made."""

    @property
    def members(self) -> list[SeenNode]:
        """Nodes of our cluster."""
        return [seen for seen in self.seen.values() if seen.refusal is None]

    @property
    def strangers(self) -> list[SeenNode]:
        """Nodes whose tag we cannot verify: another secret."""
        return [s for s in self.seen.values() if s.refusal is RecordRefusal.FOREIGN]

    @property
    def has_multicast(self) -> bool:
        """Whether anybody's multicast came through, in either direction."""
        return bool(self.heard or self.answered)


def check_multicast(
    interface: Interface,
    *,
    key: bytes | None = None,
    call: Sequence[str] = (),
    version: int | None = None,
    wait_s: float = 1.6,
) -> MulticastReport:
    """Ask everybody on this interface and listen for ``wait_s``. Blocking.

    Without a key nobody is recognised as a member. ``version`` is 4 or 6; left out, it
    is 4 where there is any. The wait covers the slowest answer that the rules of mDNS
    allow, 1.4 s. Needs no running node and disturbs none.
    """
    own: dict[int, str] = {
        a.version: str(a.ip) for a in interface.addresses if "%" not in str(a)
    }
    version = version or min(own, default=4)
    probe = MulticastReport(interface=interface.name, trouble=port_trouble())
    if probe.trouble is None:
        try:
            with ExitStack() as stack:
                sockets = _open(interface.name, own.get(version), stack)
                _query_and_listen(sockets, probe, key, call, wait_s)
        except OSError as exc:
            text = f"{interface.name} takes no multicast: {exc}"
            probe.trouble = DiscoveryUnavailable(UnavailableReason.NO_SOCKET, text)
    return probe


@dataclass(frozen=True, slots=True)
class _Sockets:
    listener: socket.socket
    asker: socket.socket
    caller: socket.socket
    group: str
    own: str


def _open(name: str, address: str | None, stack: ExitStack) -> _Sockets:
    if address is None:
        raise OSError("it has no address of that family")
    family, group = socket.AF_INET, GROUP4
    if ":" in address:
        family, group = socket.AF_INET6, GROUP6
    listener, asker, caller = (
        stack.enter_context(socket.socket(family, socket.SOCK_DGRAM)) for _ in range(3)
    )
    allow_port_sharing(listener)
    listener.bind(_bind_address(group, name))
    asker.bind((address, 0))
    caller.bind((address, 0))
    _join(listener, asker, name, address)
    for sock in (listener, asker, caller):
        sock.setblocking(False)
    return _Sockets(listener, asker, caller, group, address)


def _bind_address(group: str, name: str) -> tuple[str, int] | tuple[str, int, int, int]:
    """Where to listen: at the group itself, so that nothing else is received."""
    if sys.platform == "win32":  # which has no such thing
        return "", PORT
    if ":" in group:
        return group, PORT, 0, socket.if_nametoindex(name)
    return group, PORT


def _join(
    listener: socket.socket, asker: socket.socket, name: str, address: str
) -> None:
    """Receive and send the group's packets on this interface."""
    if listener.family == socket.AF_INET6:
        index = struct.pack("@I", socket.if_nametoindex(name))
        member = socket.inet_pton(socket.AF_INET6, GROUP6) + index
        listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_JOIN_GROUP, member)
        asker.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_MULTICAST_IF, index)
        asker.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_MULTICAST_HOPS, 255)
        return
    here = socket.inet_aton(address)
    if sys.platform == "linux":
        listener.setsockopt(socket.IPPROTO_IP, _IP_MULTICAST_ALL, 0)
    member = socket.inet_aton(GROUP4) + here
    listener.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, member)
    asker.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, here)
    asker.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_TTL, b"\xff")


def _query_and_listen(
    sockets: _Sockets,
    probe: MulticastReport,
    key: bytes | None,
    call: Sequence[str],
    wait_s: float,
) -> None:
    questions = [
        packet
        for service in (SERVICE, ANY_SERVICE)
        for packet in build_query(
            service, number=1 + secrets.randbelow(65535)
        ).packets()
    ]
    for question in questions:
        sockets.asker.sendto(question, (sockets.group, PORT))
        for address in call:
            with suppress(OSError):  # no way there, or of the other family
                sockets.caller.sendto(question, (address, PORT))
    for sock, packet, source, port in _packets(sockets, Deadline.after(wait_s)):
        if source == sockets.own and port == sockets.asker.getsockname()[1]:
            probe.loops_back = True
        _note_host(probe, sockets, sock, source)
        _note_records(probe, packet, source, key)


def _packets(
    sockets: _Sockets, deadline: Deadline
) -> Iterable[tuple[socket.socket, bytes, str, int]]:
    """What arrives on any of the sockets until the deadline, within bounds."""
    left = MAX_PACKETS
    with selectors.DefaultSelector() as selector:
        for sock in (sockets.listener, sockets.asker, sockets.caller):
            selector.register(sock, selectors.EVENT_READ, sock)
        while left > 0 and not deadline.is_over():
            for event, _ in selector.select(deadline.left_s()):
                sock = event.data
                left -= 1
                with suppress(OSError):  # a port that was unreachable reports it here
                    packet, address = sock.recvfrom(MAX_PACKET_BYTES)
                    yield sock, packet, address[0].partition("%")[0], address[1]


def _note_host(
    probe: MulticastReport, sockets: _Sockets, sock: socket.socket, source: str
) -> None:
    if source == sockets.own:
        return
    hosts = {
        sockets.listener: probe.heard,
        sockets.asker: probe.answered,
        sockets.caller: probe.answered_directly,
    }[sock]
    if len(hosts) < MAX_HOSTS:
        hosts.add(source)


def _note_records(
    probe: MulticastReport, packet: bytes, source: str, key: bytes | None
) -> None:
    ports: dict[str, int] = {}
    texts: dict[str, bytes] = {}
    for record in DNSIncoming(packet).answers():
        label = record.name.lower().removesuffix("." + SERVICE)
        if label == record.name.lower():
            continue
        if isinstance(record, DNSService):
            ports[label] = record.port
        elif isinstance(record, DNSText):
            texts[label] = record.text
    for label in ports.keys() & texts.keys():
        _note_seen(probe, _classify(source, label, ports[label], texts[label], key))


def _note_seen(probe: MulticastReport, seen: SeenNode) -> None:
    """A member is always noted, and nothing forged in its name undoes that."""
    if seen.refusal is None or (
        seen.label not in probe.seen and len(probe.seen) < MAX_SEEN
    ):
        probe.seen[seen.label] = seen


def _classify(
    source: str, label: str, port: int, text: bytes, key: bytes | None
) -> SeenNode:
    record = decode(label, port, text)
    if not isinstance(record, NodeRecord):
        return SeenNode(source, label, (), record)
    is_member = key is not None and is_genuine(record, key)
    refusal = None if is_member else RecordRefusal.FOREIGN
    return SeenNode(source, label, record.addresses, refusal, record.port)
