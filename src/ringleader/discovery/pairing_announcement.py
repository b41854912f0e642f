"""Announces and finds, by mDNS, machines that show a pairing PIN.

The announcement is a service of its own that exists only while the window is open, and
contains only its version: the PIN decides who pairs with whom, not names. The functions
block, for commands; zeroconf runs its loop in a thread that ends with the call.
"""

from __future__ import annotations

import ipaddress
import secrets
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager

from zeroconf import (  # type: ignore[attr-defined]  # kept for users, not in __all__
    DNSAddress,
    DNSService,
    DNSText,
    ServiceInfo,
    Zeroconf,
)

from ringleader.deadline import Deadline
from ringleader.discovery.multicast import (
    DiscoveryUnavailable,
    build_query,
    listen,
    open_zeroconf,
    sender_trouble,
)
from ringleader.discovery.record import (
    MAX_ADDRESSES,
    MIN_PORT,
    addresses_to_announce,
    new_label,
)
from ringleader.errors import PeerUnreachable
from ringleader.topology.interfaces import Interface, best_first, usable_interfaces

SERVICE = "_ringleader-pair._tcp.local."
TXT = b"\x03v=1"

MAX_FOUND = 8
"""Machines that pair at the same time; more than one is rare, many are a flood."""

LINGER_S = 0.5
"""How long to wait for a second machine after the first one was found."""

_ASKS_S = (0.0, 0.3, 1.5)
_ASK_EVERY_S = 3.0


@contextmanager
def announce_pairing(
    port: int, chosen: Sequence[Interface] | None = None
) -> Iterator[DiscoveryUnavailable | None]:
    """Announce the window at ``port`` during the block; yield why that fails, or None.

    Without mDNS the window still works for those who type its address.
    """
    chosen = usable_interfaces()[0] if chosen is None else chosen
    zeroconf = open_zeroconf(chosen)
    if isinstance(zeroconf, DiscoveryUnavailable):
        yield zeroconf
        return
    with closing(zeroconf):  # says goodbye
        label = new_label(secrets.token_bytes(10))
        info = ServiceInfo(
            SERVICE,
            f"{label}.{SERVICE}",
            port=port,
            properties=TXT,
            server=f"{label}.local.",
            parsed_addresses=addresses_to_announce(chosen),
        )
        zeroconf.register_service(info, cooperating_responders=True)
        yield sender_trouble(zeroconf)


def find_pairing_hosts(
    timeout_s: float, chosen: Sequence[Interface] | None = None
) -> list[tuple[str, int]]:
    """Return addresses and ports of machines that show a PIN, soon after the first.

    They are not authenticated; the PIN will do that. Only addresses on our own networks
    count.
    """
    chosen = usable_interfaces()[0] if chosen is None else chosen
    zeroconf = open_zeroconf(chosen)
    if isinstance(zeroconf, DiscoveryUnavailable):
        raise PeerUnreachable("pairing", str(zeroconf))
    with closing(zeroconf):
        search = _Search(zeroconf, chosen)
        listen(zeroconf, SERVICE, search.hear)
        _query_until(search.is_over, zeroconf, Deadline.after(timeout_s))
        return search.results()


def _query_until(over: threading.Event, zeroconf: Zeroconf, deadline: Deadline) -> None:
    """Query repeatedly until a machine is found or the time is over."""
    passed_s = 0.0
    number = 0
    while not over.is_set() and not deadline.is_over():
        zeroconf.send(build_query(SERVICE, is_direct=number == 0))
        number += 1
        next_s = _ASKS_S[number] if number < len(_ASKS_S) else passed_s + _ASK_EVERY_S
        over.wait(min(next_s - passed_s, deadline.left_s()))
        passed_s = next_s
    if over.is_set():
        time.sleep(min(LINGER_S, deadline.left_s()))


class _Search:
    """What was found; written by zeroconf's thread, read after it has ended."""

    def __init__(self, zeroconf: Zeroconf, chosen: Sequence[Interface]) -> None:
        self._cache = zeroconf.cache
        self._chosen = chosen
        self._found: dict[str, list[tuple[str, int]]] = {}
        self.is_over = threading.Event()

    def hear(self, label: str, where: DNSService, text: DNSText) -> None:
        """Store a window that is announced correctly and on our network."""
        is_new = label not in self._found and len(self._found) < MAX_FOUND
        if not is_new or text.text != TXT or not MIN_PORT <= where.port <= 65535:
            return
        addresses = self._addresses(where.server)
        if addresses:
            self._found[label] = [(address, where.port) for address in addresses]
            self.is_over.set()

    def _addresses(self, server: str) -> Sequence[str]:
        records = self._cache.entries_with_name(server)
        packed = [r.address for r in records if isinstance(r, DNSAddress)]
        ips = [ipaddress.ip_address(part) for part in packed[: 2 * MAX_ADDRESSES]]
        near = [str(ip) for ip in ips if any(i.holds(ip) for i in self._chosen)]
        near.sort(key=lambda address: (":" in address, address))
        return best_first(near[:MAX_ADDRESSES], self._chosen)

    def results(self) -> list[tuple[str, int]]:
        """Return every address of every window, those of one machine together."""
        return [each for found in list(self._found.values()) for each in found]
