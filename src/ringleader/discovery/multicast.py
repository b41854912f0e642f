"""mDNS on the chosen interfaces: opening zeroconf, building queries, reading records.

Zeroconf's own browser is not used. It keeps a timer for every record it hears of and
lists them all in its queries, so that a flood of forged records would make us flood the
network ourselves. The listener below looks at each packet once and stores nothing.
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
"""Known answers that a query may list: as many as one packet holds."""

MAX_LABELS = 64
"""Nodes that are looked at per packet. Our responders send one; zeroconf reads up to
9 kB, where a forger could put about 150."""

POINTER_TTL_S = 4500
START_S = 60.0
"""It takes milliseconds, but not on a busy machine, which would not be found then."""


class UnavailableReason(StrEnum):
    """Why mDNS does not work here."""

    NO_INTERFACE = "no interface"
    PORT_TAKEN = "port taken"
    NO_SOCKET = "no socket"


@dataclass(frozen=True, slots=True)
class DiscoveryUnavailable:
    """Why nodes cannot find each other by mDNS here; address lists still work."""

    why: UnavailableReason
    text: str

    def __str__(self) -> str:
        mend = "name a machine that all others reach with --peers HOST"
        return f"no discovery: {self.text}; {mend}"


def sender_addresses(chosen: Sequence[Interface]) -> list[str]:
    """Return one address of each family per interface, to send multicast from.

    IPv6 is included where there is any: a peer without IPv4 hears nothing else.
    """
    firsts = [
        next((str(a.ip) for a in interface.addresses if a.version == version), None)
        for interface in chosen
        for version in (4, 6)
    ]
    return [address for address in firsts if address is not None]


def open_zeroconf(chosen: Sequence[Interface]) -> Zeroconf | DiscoveryUnavailable:
    """Open zeroconf on these interfaces only, on the running loop or in a thread."""
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
    for attempt in attempts:  # IPv4 works even where IPv6 is half configured
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
    """Return why a started zeroconf cannot send anywhere, or None; it only logs it."""
    if zeroconf.engine.senders:
        return None
    text = "multicast could not be opened on any of the chosen interfaces"
    return DiscoveryUnavailable(UnavailableReason.NO_SOCKET, text)


def port_trouble() -> DiscoveryUnavailable | None:
    """Return whether another program holds the mDNS port without sharing it.

    Checked before zeroconf tries: it would leave half-open sockets to the garbage
    collector.
    """
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        allow_port_sharing(sock)
        try:
            sock.bind(("", PORT))
        except OSError as exc:
            if exc.errno == errno.EADDRINUSE:
                text = f"another program holds UDP port {PORT} and does not share it"
                return DiscoveryUnavailable(UnavailableReason.PORT_TAKEN, text)
            return DiscoveryUnavailable(
                UnavailableReason.NO_SOCKET, f"UDP port {PORT}: {exc}"
            )
    return None


def allow_port_sharing(sock: socket.socket) -> None:
    """Let other programs bind the port too, as every mDNS program must."""
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
    """Return a query for ``service``; nodes in ``known`` need not answer.

    A direct query is answered at once and to us alone, any other after up to 1.4 s and
    by multicast. If several programs of a host share the port, the answer to a direct
    query may reach another one. Unless numbered, the same query within a second counts
    as a repetition and is not answered.
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
    """Report records and goodbyes of a service, on zeroconf's loop, until it closes.

    Records that arrived before this call are reported too, because of the question: a
    node announces itself three times, but zeroconf drops repetitions within a second.
    """
    listener = _RecordListener(zeroconf, service, on_record, on_goodbye)
    zeroconf.add_listener(listener, [DNSQuestion(service, TYPE_PTR, CLASS_IN)])


class _RecordListener(RecordUpdateListener):
    """Extracts the records of one service from each packet."""

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
        """Collect our records of a packet that zeroconf read, or expired."""
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
        """Report the packet, now that it is in zeroconf's cache."""
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
        """Return the other record, which a reflector may send in another packet."""
        return self._cache.get_by_details(label + self._suffix, kind, CLASS_IN)


def _node_name(record: DNSRecord) -> str:
    """Return the node a record is about, in lower case; empty for other records."""
    if record.type == TYPE_PTR and isinstance(record, DNSPointer):
        return record.alias.lower()
    return record.name.lower() if record.type in (TYPE_SRV, TYPE_TXT) else ""
