"""InterfaceKind is the kind of network an interface leads to, judged by its name.

The driver is not used: in a container or a network namespace the one real ``eth0`` is a
veth. Names of Linux, macOS and Windows do not collide, except for bridges.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Collection, Sequence
from enum import StrEnum
from ipaddress import IPv4Interface, IPv6Interface

Address = IPv4Interface | IPv6Interface
"""An address together with the prefix length of its network."""


class InterfaceKind(StrEnum):
    """The kind of network an interface leads to."""

    UNKNOWN = "unknown"
    LOOPBACK = "loopback"
    WIFI = "wifi"
    ETHERNET = "ethernet"
    THUNDERBOLT = "thunderbolt"
    VIRTUAL = "virtual"
    VPN = "vpn"


_LOOPBACK = re.compile(r"(lo\d*|loopback.*)$")
_VPN = re.compile(
    r"(tailscale|zt|wg|tun|tap|utun|ppp|ipsec|nordlynx|proton|cscotun|gpd|vti)"
    r"|.*\b(vpn|openvpn|wireguard|zerotier|tailscale|wintun|tap-windows)"
)
_VIRTUAL = re.compile(
    r"(docker|br-|veth|virbr|vmnet|vmenet|vboxnet|vnet|lxc|lxd|cni|flannel|cali|cilium"
    r"|podman|kube|dummy|ifb|ovs|vxlan|gre|sit|ip6tnl|gif|stf|anpi|ap\d|hassio)"
    r"|.*\b(vethernet|wsl|hyper-v|virtualbox|vmware|npcap|bluetooth)"
)
_BRIDGE = re.compile(r"(br|bridge|vmbr)\d*$")
_APPLE_PEERS = re.compile(r"(awdl|llw)\d*$")
_WIFI = re.compile(r"(wl|wifi|wi-fi|ath\d|ra\d)|.*\bwireless")
_ETHERNET = re.compile(r"(en|em\d|eth|usb|ax|bond|team|local area connection)")


def kind_of(
    name: str,
    addresses: Sequence[Address] = (),
    *,
    system: str = sys.platform,
    hints: Collection[str] = (),
) -> InterfaceKind:
    """Return the kind of an interface by its name.

    ``hints`` may hold ``wireless``, and ``card`` for a bridge with a real card as port.
    """
    low = name.lower()
    if _LOOPBACK.match(low):
        return InterfaceKind.LOOPBACK
    if is_apple_peer_interface(low) or "wireless" in hints:
        return InterfaceKind.WIFI
    if _VPN.match(low):
        return InterfaceKind.VPN
    if _BRIDGE.match(low):
        return _kind_of_bridge(low, system, hints)
    if _VIRTUAL.match(low):
        return InterfaceKind.VIRTUAL
    if low.startswith("thunderbolt") or _is_apple_cable(low, addresses):
        return InterfaceKind.THUNDERBOLT
    if _WIFI.match(low):
        return InterfaceKind.WIFI
    return InterfaceKind.ETHERNET if _ETHERNET.match(low) else InterfaceKind.UNKNOWN


def is_apple_peer_interface(name: str) -> bool:
    """Return whether it serves AirDrop and the like: Wi-Fi, but not for programs."""
    return _APPLE_PEERS.match(name.lower()) is not None


def _kind_of_bridge(name: str, system: str, hints: Collection[str]) -> InterfaceKind:
    """On a Mac bridge0 is the Thunderbolt bridge; bridge100 is a virtual machine's."""
    if system == "darwin":
        is_cable = name.startswith("bridge") and len(name) < len("bridge100")
        return InterfaceKind.THUNDERBOLT if is_cable else InterfaceKind.VIRTUAL
    # A host of virtual machines often has its own address on such a bridge.
    return InterfaceKind.ETHERNET if "card" in hints else InterfaceKind.VIRTUAL


def _is_apple_cable(name: str, addresses: Sequence[Address]) -> bool:
    """A Mac's en5 with only a self-assigned address is a Thunderbolt cable."""
    fours = [a for a in addresses if a.version == 4]
    return bool(
        re.fullmatch(r"en\d+", name) and fours and all(a.is_link_local for a in fours)
    )
