"""mDNS on the chosen interfaces: opening it, asking, and reading what arrives.

Zeroconf's own browser is not used. It keeps a timer for every record it hears of and
lists them all in its questions, so that a flood of forged ones would make us flood the
network ourselves. The ear below looks at each packet once and remembers nothing.
"""

from __future__ import annotations

import errno
import socket
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from enum import StrEnum

from zeroconf import (  # type: ignore[attr-defined]  # kept for users, not in __all__
    DNSOutgoing,
    DNSPointer,
    DNSQuestion,
    DNSRecord,
    DNSService,
    DNSText,
    NotRunningException,
    RecordUpdate,
    RecordUpdateListener,
    Zeroconf,
)

from ringleader.topology.interfaces import Interface

PORT = 5353
GROUP4 = "224.0.0.251"
GROUP6 = "ff02::fb"

TYPE_PTR, TYPE_TXT, TYPE_SRV = 12, 16, 33
CLASS_IN = 1

MAX_KNOWN = 32
"""Answers that a question may list as known: as many as one packet holds."""

MAX_LABELS = 64
"""Nodes that are looked at per packet. A responder of ours sends one; zeroconf reads up
to 9 kB, where a forger could put some 150."""

POINTER_TTL_S = 4500
START_S = 5.0


class UnavailableReason(StrEnum):
    """What keeps mDNS from working here."""

    NO_INTERFACE = "no interface"
    PORT_TAKEN = "port taken"
    NO_SOCKET = "no socket"


@dataclass(frozen=True, slots=True)
class DiscoveryUnavailable:
    """Why nodes cannot find each other by mDNS here; lists of addresses still work."""

    why: UnavailableReason
    text: str

    def __str__(self) -> str:
        return f"no discovery: {self.text}; name the others with --peers host:port"


def sender_addresses(chosen: Sequence[Interface]) -> list[str]:
    """One address of each family per interface: where multicast leaves.

    IPv6 too where there is any: a peer without IPv4 hears nothing else.
    """
    firsts = [
        next((str(a.ip) for a in interface.addresses if a.version == version), None)
        for interface in chosen
        for version in (4, 6)
    ]
    return [address for address in firsts if address is not None]


def open_zeroconf(chosen: Sequence[Interface]) -> Zeroconf | DiscoveryUnavailable:
    """Zeroconf on these interfaces only; on the running loop, or else a thread."""
    addresses = sender_addresses(chosen)
    if not addresses:
        text = "no network interface is fit for a cluster"
        return DiscoveryUnavailable(UnavailableReason.NO_INTERFACE, text)
    trouble = port_trouble()
    if trouble is not None:
        return trouble
    only4 = [address for address in addresses if ":" not in address]
    attempts = [addresses, only4] if only4 and only4 != addresses else [addresses]
    error: Exception | None = None
    for attempt in attempts:  # a system where IPv6 is half there has IPv4 all the same
        try:
            return Zeroconf(interfaces=list(attempt))
        except (OSError, RuntimeError) as exc:
            error = exc
    return DiscoveryUnavailable(
        UnavailableReason.NO_SOCKET, f"{', '.join(addresses)}: {error}"
    )


async def wait_until_open(zeroconf: Zeroconf) -> DiscoveryUnavailable | None:
    """Wait for the sockets of a zeroconf on this loop."""
    try:
        await zeroconf.async_wait_for_start(START_S)
    except NotRunningException:
        return DiscoveryUnavailable(
            UnavailableReason.NO_SOCKET, f"mDNS did not start within {START_S:g} s"
        )
    return sender_trouble(zeroconf)


def sender_trouble(zeroconf: Zeroconf) -> DiscoveryUnavailable | None:
    """Whether a zeroconf that has started can send anywhere; it only logs failures."""
    if zeroconf.engine.senders:
        return None
    text = "multicast could not be opened on any of the chosen interfaces"
    return DiscoveryUnavailable(UnavailableReason.NO_SOCKET, text)


def port_trouble() -> DiscoveryUnavailable | None:
    """Whether somebody holds the port of mDNS without sharing it.

    Tried before zeroconf does: it would leave its half-open sockets to the collector.
    """
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        allow_port_sharing(probe)
        try:
            probe.bind(("", PORT))
        except OSError as exc:
            if exc.errno == errno.EADDRINUSE:
                text = f"another program holds UDP port {PORT} and does not share it"
                return DiscoveryUnavailable(UnavailableReason.PORT_TAKEN, text)
            return DiscoveryUnavailable(
                UnavailableReason.NO_SOCKET, f"UDP port {PORT}: {exc}"
            )
    return None


def allow_port_sharing(sock: socket.socket) -> None:
    """Let others have the port too, as every mDNS program must."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if hasattr(socket, "SO_REUSEPORT"):
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)


def build_query(
    service: str,
    *,
    is_direct: bool = False,
    known: Collection[str] = (),
    number: int = 0,
) -> DNSOutgoing:
    """The question who offers ``service``; nodes in ``known`` need not answer.

    A direct question is answered at once and to us alone, any other after up to 1.4 s
    and to everybody. On a host where several programs share the port, the answer to a
    direct one may reach one of the others. Unless numbered, the same question within a
    second counts as a repetition and is not answered.
    """
    out = DNSOutgoing(0, multicast=number == 0, id_=number)
    question = DNSQuestion(service, TYPE_PTR, CLASS_IN)
    question.unicast = is_direct
    out.add_question(question)
    for label in list(known)[:MAX_KNOWN]:
        name = f"{label}.{service}"
        pointer = DNSPointer(service, TYPE_PTR, CLASS_IN, POINTER_TTL_S, name)
        out.add_answer_at_time(pointer, 0)
    return out


def listen(
    zeroconf: Zeroconf,
    service: str,
    on_record: Callable[[str, DNSService, DNSText], None],
    on_goodbye: Callable[[str], None] = lambda _: None,
) -> None:
    """Report the records and goodbyes of a service, on zeroconf's loop, until it ends.

    With the question, what arrived before us is reported too: a node announces itself
    three times, but zeroconf drops repetitions within a second.
    """
    ear = _RecordListener(zeroconf, service, on_record, on_goodbye)
    zeroconf.add_listener(ear, [DNSQuestion(service, TYPE_PTR, CLASS_IN)])


class _RecordListener(RecordUpdateListener):
    """Reads the records of one service out of each packet."""

    def __init__(
        self,
        zeroconf: Zeroconf,
        service: str,
        on_record: Callable[[str, DNSService, DNSText], None],
        on_goodbye: Callable[[str], None],
    ) -> None:
        self._cache = zeroconf.cache
        self._suffix = "." + service
        self._on_record = on_record
        self._on_goodbye = on_goodbye
        self._heard: dict[str, dict[int, DNSRecord]] = {}
        self._goodbyes: set[str] = set()

    def async_update_records(
        self, zc: Zeroconf, now: float, records: list[RecordUpdate]
    ) -> None:
        """Zeroconf read a packet, or expired something; note what is about us."""
        for update in records:
            record = update.new
            name = _node_name(record)
            if not name.endswith(self._suffix) or len(self._heard) >= MAX_LABELS:
                continue
            label = name.removesuffix(self._suffix)
            if not record.is_expired(now):
                self._heard.setdefault(label, {})[record.type] = record
            elif record.type == TYPE_SRV and len(self._goodbyes) < MAX_LABELS:
                self._goodbyes.add(label)

    def async_update_records_complete(self) -> None:
        """The packet is in zeroconf's cache; judge it."""
        heard, self._heard = self._heard, {}
        goodbyes, self._goodbyes = self._goodbyes, set()
        for label, parts in heard.items():
            where = parts.get(TYPE_SRV) or self._cached(label, TYPE_SRV)
            text = parts.get(TYPE_TXT) or self._cached(label, TYPE_TXT)
            if isinstance(where, DNSService) and isinstance(text, DNSText):
                self._on_record(label, where, text)
        for label in goodbyes - heard.keys():
            self._on_goodbye(label)

    def _cached(self, label: str, kind: int) -> DNSRecord | None:
        """The rest, when a reflector sends it in separate packets."""
        return self._cache.get_by_details(label + self._suffix, kind, CLASS_IN)


def _node_name(record: DNSRecord) -> str:
    """The node that a record is about, in lower case; empty for other records."""
    if record.type == TYPE_PTR and isinstance(record, DNSPointer):
        return record.alias.lower()
    return record.name.lower() if record.type in (TYPE_SRV, TYPE_TXT) else ""
