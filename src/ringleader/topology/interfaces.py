"""Network interfaces of this host: their kind, and which of them carry a cluster.

An interface is judged by its name, flags and addresses, not by its driver: in a
container or a network namespace the one real ``eth0`` is a veth. Picking a wrong one by
accident (docker0, a VPN, the bridge of a virtual machine) is hard to diagnose, so
anything that looks virtual is left out with a reason; a user who wants it names it.
"""

from __future__ import annotations

import ipaddress
import socket
import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from ipaddress import IPv4Address, IPv4Interface, IPv6Address, IPv6Interface
from pathlib import Path
from typing import Any

import psutil

from ringleader.errors import ConfigError
from ringleader.topology.interface_kind import Address, is_apple_peer_interface, kind_of
from ringleader.topology.interface_kind import (
    InterfaceKind as InterfaceKind,  # re-exported
)

Ip = IPv4Address | IPv6Address

# The order in which a peer's addresses are tried. Loopback comes last: such an address
# reaches a node of another machine only by mistake.
_PREFERENCE = (
    InterfaceKind.THUNDERBOLT,
    InterfaceKind.ETHERNET,
    InterfaceKind.WIFI,
    InterfaceKind.VIRTUAL,
    InterfaceKind.VPN,
    InterfaceKind.UNKNOWN,
    InterfaceKind.LOOPBACK,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Interface:
    """One network interface of this host at the time of the call."""

    name: str
    kind: InterfaceKind
    addresses: tuple[Address, ...] = ()
    is_up: bool = True
    mtu: int = 1500
    speed_bytes_per_s: float = 0.0
    """The speed the card reports; 0 if none, as for Wi-Fi and veth."""

    has_multicast: bool = True
    is_point_to_point: bool = False
    is_default: bool = False
    """True if the default route uses it."""

    def holds(self, address: Ip) -> bool:
        """Return whether ``address`` lies in one of its networks."""
        return any(
            own.version == address.version and address in own.network
            for own in self.addresses
        )


def list_interfaces() -> list[Interface]:
    """Return the interfaces of this host. Takes about a millisecond, sends nothing."""
    addresses, stats = psutil.net_if_addrs(), psutil.net_if_stats()
    hints = {name: _hints(name) for name in addresses}
    return from_tables(addresses, stats, defaults=_default_sources(), hints=hints)


def from_tables(
    addresses: Mapping[str, Sequence[Any]],
    stats: Mapping[str, Any],
    *,
    defaults: Collection[Ip] = (),
    hints: Mapping[str, Collection[str]] | None = None,
    system: str = sys.platform,
) -> list[Interface]:
    """Return interfaces from psutil's two tables, in their order."""
    found = []
    for name, entries in addresses.items():
        own = tuple(a for entry in entries if (a := _address(entry)) is not None)
        facts = stats.get(name)
        flags = getattr(facts, "flags", "").split(",")
        kind = kind_of(name, own, system=system, hints=(hints or {}).get(name, ()))
        found.append(
            Interface(
                name=name,
                kind=kind,
                addresses=own,
                is_up=bool(facts and facts.isup),
                mtu=facts.mtu if facts else 0,
                speed_bytes_per_s=facts.speed * 1e6 / 8 if facts else 0.0,
                # Windows has no flags; nothing is excluded for them there.
                has_multicast="multicast" in flags or flags == [""],
                is_point_to_point="pointopoint" in flags,
                is_default=any(a.ip in defaults for a in own),
            )
        )
    return found


def _address(entry: Any) -> Address | None:  # noqa: ANN401 (psutil has no types)
    """Convert an address of psutil; None for a hardware address."""
    if entry.family not in (socket.AF_INET, socket.AF_INET6):
        return None
    mask = entry.netmask
    try:
        if entry.family == socket.AF_INET:
            return IPv4Interface(f"{entry.address}/{mask or 32}")
        # Windows gives no mask for IPv6; every LAN uses 64.
        bits = 64 if mask is None else int(ipaddress.IPv6Address(mask)).bit_count()
        return IPv6Interface(f"{entry.address}/{bits}")
    except ValueError:  # not an address we could announce or dial
        return None


def _hints(name: str) -> set[str]:
    """Return what Linux knows of an interface beyond its name; empty elsewhere."""
    folder = Path("/sys/class/net", name)
    hints = set()
    if (folder / "wireless").exists() or (folder / "phy80211").exists():
        hints.add("wireless")
    ports = folder / "brif"
    if ports.exists() and any(
        (folder.parent / port.name / "device").exists() for port in ports.iterdir()
    ):
        hints.add("card")
    return hints


def _default_sources() -> set[Ip]:
    """Return our addresses on the default route; connecting UDP sends no packet."""
    sources = set()
    for family, far in (
        (socket.AF_INET, "203.0.113.1"),
        (socket.AF_INET6, "2001:db8::1"),
    ):
        try:
            with socket.socket(family, socket.SOCK_DGRAM) as probe:
                probe.connect((far, 9))
                sources.add(ipaddress.ip_address(probe.getsockname()[0]))
        except OSError:  # no such address family here, or no default route
            continue
    return sources


_PRIVATE = tuple(
    ipaddress.ip_network(text)
    for text in (
        *("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16"),
        *("169.254.0.0/16", "100.64.0.0/10"),
    )
)
_ROUTABLE = (ipaddress.ip_network("fc00::/7"), ipaddress.ip_network("2000::/3"))


def choose_interfaces(
    interfaces: Sequence[Interface], wanted: Collection[str] | None = None
) -> tuple[list[Interface], list[tuple[Interface, str]]]:
    """Return interfaces that carry the cluster, best first, and the rest with reasons.

    The chosen ones keep only the addresses that may be announced and dialed. If
    ``wanted`` is given, exactly the interfaces it names are used, if they work at all.
    """
    names = {interface.name for interface in interfaces}
    unknown = sorted(set(wanted or ()) - names)
    if unknown:
        here = ", ".join(sorted(names))
        raise ConfigError(f"no network interface {unknown[0]!r} here; there are {here}")
    chosen, refused = [], []
    for interface in interfaces:
        fit = _fit_addresses(interface, is_wanted=wanted is not None)
        why_not = _why_not(interface, wanted, fit)
        if why_not is None:
            chosen.append(replace(interface, addresses=fit))
        else:
            refused.append((interface, why_not))
    chosen.sort(key=lambda i: (not i.is_default, _is_self_assigned(i)))
    return chosen, refused


def usable_interfaces(
    wanted: Collection[str] = (),
) -> tuple[list[Interface], list[tuple[Interface, str]]]:
    """Return ``choose_interfaces`` for this host now; an empty ``wanted`` allows
    all."""
    return choose_interfaces(list_interfaces(), wanted or None)


def describe_refused(
    refused: Sequence[tuple[Interface, str]], *, is_complete: bool = False
) -> str:
    """Return why interfaces are not used: one for each reason, and how many others.

    A machine with containers has dozens of the same kind. ``is_complete`` names all.
    Those of loopback, which nobody misses, are left out.
    """
    left = [(e.name, why) for e, why in refused if e.kind != InterfaceKind.LOOPBACK]
    if is_complete:
        return "; ".join(f"{name} {why}" for name, why in left)
    names: dict[str, list[str]] = {}
    for name, why in left:
        names.setdefault(why, []).append(name)
    return "; ".join(
        f"{first} {why}" + (f" ({len(others)} more)" if others else "")
        for why, (first, *others) in names.items()
    )


def _is_self_assigned(interface: Interface) -> bool:
    return all(address.is_link_local for address in interface.addresses)


def _fit_addresses(interface: Interface, *, is_wanted: bool) -> tuple[Address, ...]:
    """Return addresses other nodes can use; link-local IPv6 never (needs a scope)."""
    fours = [a for a in interface.addresses if a.version == 4]
    sixes = [a for a in interface.addresses if a.version == 6]
    sixes = [a for a in sixes if any(a.ip in net for net in _ROUTABLE)]
    if not is_wanted:
        fours = [a for a in fours if any(a.ip in net for net in _PRIVATE)]
        fours = [a for a in fours if a.network.prefixlen <= 30]
        sixes = [a for a in sixes if a.network.prefixlen <= 126]
    # Unique local addresses first: the provider does not change them.
    return (*fours, *sorted(sixes, key=lambda a: a.ip not in _ROUTABLE[0]))


def _why_not(
    interface: Interface, wanted: Collection[str] | None, fit: tuple[Address, ...]
) -> str | None:
    """Return why an interface carries no cluster; None if it does."""
    if wanted is not None and interface.name not in wanted:
        return "is not among the requested interfaces"
    if not interface.is_up:
        return "is down"
    if wanted is None:
        why_not = _why_not_unasked(interface)
        if why_not is not None:
            return why_not
    if not fit:
        return "has no address that another machine could use"
    return None


def _why_not_unasked(interface: Interface) -> str | None:
    kind = interface.kind
    if kind in (InterfaceKind.LOOPBACK, InterfaceKind.VIRTUAL, InterfaceKind.VPN):
        return f"is {'a VPN' if kind is InterfaceKind.VPN else kind.value} by its name"
    if is_apple_peer_interface(interface.name):
        return "belongs to Apple's own peer-to-peer services"
    if interface.is_point_to_point or not interface.has_multicast:
        return "is a point-to-point link, or carries no multicast"
    fours = [a for a in interface.addresses if a.version == 4]
    if fours and not any(a.ip in net for a in fours for net in _PRIVATE):
        return f"has a public address ({fours[0].ip}); name it to use it anyway"
    return None


def interface_towards(
    interfaces: Sequence[Interface], peers: Sequence[Collection[str]]
) -> str:
    """Return the name of the first interface in a network with every peer.

    ``peers`` are the addresses that each peer announced. Without such an interface it
    is the first one, and the empty string if there are none.
    """
    known = [[ip for a in addresses if (ip := _ip(a))] for addresses in peers]
    for interface in interfaces:
        if all(any(map(interface.holds, addresses)) for addresses in known):
            return interface.name
    return interfaces[0].name if interfaces else ""


def _ip(address: str) -> Ip | None:
    try:
        return ipaddress.ip_address(address)
    except ValueError:  # a peer may announce anything
        return None


def kind_of_peer(address: str, interfaces: Sequence[Interface]) -> InterfaceKind:
    """Return the kind of interface over which a peer's address is reached."""
    # A dual-stack socket shows IPv4 addresses with this prefix.
    ip = ipaddress.ip_address(address.removeprefix("::ffff:"))
    if ip.is_loopback:
        return InterfaceKind.LOOPBACK
    if ip.is_link_local:
        has_cable = any(
            i.kind is InterfaceKind.THUNDERBOLT
            and any(a.is_link_local for a in i.addresses)
            for i in interfaces
        )
        return InterfaceKind.THUNDERBOLT if has_cable else InterfaceKind.ETHERNET
    kinds = [i.kind for i in interfaces if i.is_up and i.holds(ip)]
    return min(kinds, key=_PREFERENCE.index, default=InterfaceKind.UNKNOWN)


def best_first(
    addresses: Sequence[str], interfaces: Sequence[Interface]
) -> tuple[str, ...]:
    """Return a peer's addresses in the order to try them: the fastest kind first."""
    kinds = {a: kind_of_peer(a, interfaces) for a in addresses}
    return tuple(sorted(addresses, key=lambda a: _PREFERENCE.index(kinds[a])))
