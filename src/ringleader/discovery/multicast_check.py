"""check_multicast tests, for the doctor, whether multicast works and who announces
what.

Three sockets distinguish three cases. The listener is bound to the port and group of
mDNS: what it receives was multicast. The asker has a port of its own, so the answers to
its multicast query come to it alone: a host that answers there has received our
multicast. The caller queries known addresses directly: a host that answers only there
is reachable, but the multicast between us is lost.
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
    """The port it listens on, if the record is well formed."""


@dataclass(slots=True, kw_only=True)
class MulticastReport:
    """How multicast works on one interface."""

    interface: str
    loops_back: bool = False
    """True if our own query came back to us; if not, a firewall on this host drops
    it."""

    heard: set[str] = field(default_factory=set)
    """Other hosts whose multicast reached us, from whatever program."""

    answered: set[str] = field(default_factory=set)
    """Other hosts that our multicast reached."""

    answered_directly: set[str] = field(default_factory=set)
    """Those addresses that answered when they were queried directly."""

    seen: dict[str, SeenNode] = field(default_factory=dict)
    """Nodes by label, including our own if it runs."""

    trouble: DiscoveryUnavailable | None = None
    """Why the check itself could not be made."""

    @property
    def members(self) -> list[SeenNode]:
        """Nodes of our cluster."""
        return [seen for seen in self.seen.values() if seen.refusal is None]

    @property
    def strangers(self) -> list[SeenNode]:
        """Nodes whose tag we cannot verify: they have another secret."""
        return [s for s in self.seen.values() if s.refusal is RecordRefusal.FOREIGN]

    @property
    def has_multicast(self) -> bool:
        """True if any multicast came through, in either direction."""
        return bool(self.heard or self.answered)


def check_multicast(
    interface: Interface,
    *,
    key: bytes | None = None,
    call: Sequence[str] = (),
    version: int | None = None,
    wait_s: float = 1.6,
) -> MulticastReport:
    """Query everybody on this interface and listen for ``wait_s``. Blocking.

    Without a key nobody is recognised as a member. ``version`` is 4 or 6; by default 4
    where there is any. The wait covers the slowest answer that the rules of mDNS allow,
    1.4 s. It needs no running node and disturbs none.
    """
    own: dict[int, str] = {
        a.version: str(a.ip) for a in interface.addresses if "%" not in str(a)
    }
    version = version or min(own, default=4)
    report = MulticastReport(interface=interface.name, trouble=port_trouble())
    if report.trouble is None:
        try:
            with ExitStack() as stack:
                sockets = _open(interface.name, own.get(version), stack)
                _query_and_listen(sockets, report, key, call, wait_s)
        except OSError as exc:
            text = f"{interface.name} takes no multicast: {exc}"
            report.trouble = DiscoveryUnavailable(UnavailableReason.NO_SOCKET, text)
    return report


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
    """Return the address to listen on: the group itself, to receive nothing else."""
    if sys.platform == "win32":  # it cannot bind to a group
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
    report: MulticastReport,
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
            with suppress(OSError):  # no route, or the other address family
                sockets.caller.sendto(question, (address, PORT))
    for sock, packet, source, port in _packets(sockets, Deadline.after(wait_s)):
        if source == sockets.own and port == sockets.asker.getsockname()[1]:
            report.loops_back = True
        _note_host(report, sockets, sock, source)
        _note_records(report, packet, source, key)


def _packets(
    sockets: _Sockets, deadline: Deadline
) -> Iterable[tuple[socket.socket, bytes, str, int]]:
    """Yield what arrives on any of the sockets until the deadline, within bounds."""
    left = MAX_PACKETS
    with selectors.DefaultSelector() as selector:
        for sock in (sockets.listener, sockets.asker, sockets.caller):
            selector.register(sock, selectors.EVENT_READ, sock)
        while left > 0 and not deadline.is_over():
            for event, _ in selector.select(deadline.left_s()):
                sock = event.data
                left -= 1
                with suppress(OSError):  # an ICMP error for an earlier packet
                    packet, address = sock.recvfrom(MAX_PACKET_BYTES)
                    yield sock, packet, address[0].partition("%")[0], address[1]


def _note_host(
    report: MulticastReport, sockets: _Sockets, sock: socket.socket, source: str
) -> None:
    if source == sockets.own:
        return
    hosts = {
        sockets.listener: report.heard,
        sockets.asker: report.answered,
        sockets.caller: report.answered_directly,
    }[sock]
    if len(hosts) < MAX_HOSTS:
        hosts.add(source)


def _note_records(
    report: MulticastReport, packet: bytes, source: str, key: bytes | None
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
        _note_seen(report, _classify(source, label, ports[label], texts[label], key))


def _note_seen(report: MulticastReport, seen: SeenNode) -> None:
    """Store an announcement; a member's is never replaced by a forged one."""
    if seen.refusal is None or (
        seen.label not in report.seen and len(report.seen) < MAX_SEEN
    ):
        report.seen[seen.label] = seen


def _classify(
    source: str, label: str, port: int, text: bytes, key: bytes | None
) -> SeenNode:
    record = decode(label, port, text)
    if not isinstance(record, NodeRecord):
        return SeenNode(source, label, (), record)
    is_member = key is not None and is_genuine(record, key)
    refusal = None if is_member else RecordRefusal.FOREIGN
    return SeenNode(source, label, record.addresses, refusal, record.port)
