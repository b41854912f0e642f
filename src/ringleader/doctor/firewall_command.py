"""The command that lets ports through a firewall, for each firewall we know. Pure."""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum


class FirewallKind(StrEnum):
    """Which program filters the packets of a machine."""

    UFW = "ufw"
    FIREWALLD = "firewalld"
    NFTABLES = "nftables"
    IPTABLES = "iptables"
    WINDOWS = "Windows Defender Firewall"
    MACOS = "the macOS application firewall"


@dataclass(frozen=True, slots=True)
class Firewall:
    """A firewall, and the chain of nftables that decides about incoming packets."""

    kind: FirewallKind
    chain: str = "inet filter input"
    """Family, table and chain, as nft's commands name them."""


USUAL = {
    "Linux": (
        Firewall(FirewallKind.UFW),
        Firewall(FirewallKind.FIREWALLD),
        Firewall(FirewallKind.NFTABLES),
    ),
    "Windows": (Firewall(FirewallKind.WINDOWS),),
    "Darwin": (Firewall(FirewallKind.MACOS),),
}
"""Name of the operating system -> the firewalls that it usually has."""


def allow(
    firewall: Firewall, ports: Sequence[range], network: str, protocol: str = "tcp"
) -> str:
    """Return the command, or where to click, that lets ``network`` reach ``ports``.

    An empty ``network`` is any address.
    """
    dashed = [_format(each, "-") for each in ports]
    coloned = ",".join(_format(each, ":") for each in ports)
    is_ipv6 = bool(network) and ipaddress.ip_network(network).version == 6
    match firewall.kind:
        case FirewallKind.UFW:
            source = network or "any"
            return (
                f"sudo ufw allow proto {protocol} from {source} to any port {coloned}"
            )
        case FirewallKind.FIREWALLD:
            words = " ".join(f"--add-port={each}/{protocol}" for each in dashed)
            return (
                f"sudo firewall-cmd --permanent {words} && sudo firewall-cmd --reload"
            )
        case FirewallKind.NFTABLES:
            family = "ip6" if is_ipv6 else "ip"
            source = f"{family} saddr {network} " if network else ""
            chosen = ", ".join(dashed)
            return (
                f"sudo nft insert rule {firewall.chain} {source}"
                f"{protocol} dport '{{ {chosen} }}' accept"
            )
        case FirewallKind.IPTABLES:
            program = "ip6tables" if is_ipv6 else "iptables"
            source = f" -s {network}" if network else ""
            return (
                f"sudo {program} -I INPUT -p {protocol}{source} "
                f"-m multiport --dports {coloned} -j ACCEPT"
            )
        case FirewallKind.WINDOWS:
            source = f" -RemoteAddress {network}" if network else ""
            return (
                "New-NetFirewallRule -DisplayName Ringleader -Direction Inbound "
                f"-Action Allow -Protocol {protocol.upper()} "
                f"-LocalPort {','.join(dashed)}{source} (PowerShell, as administrator)"
            )
        case FirewallKind.MACOS:
            return (
                "it filters programs, not ports: in System Settings > Network > "
                "Firewall > Options let Python accept incoming connections"
            )


def allow_over_there(system: str, ports: Sequence[range], network: str) -> str:
    """Return the commands for another machine, as exact as is known.

    ``system`` is the name of its operating system; empty if it is unknown.
    """
    systems = [system] if system in USUAL else list(USUAL)
    known = [each for name in systems for each in USUAL[name]]
    if len(known) == 1:
        return f"for {known[0].kind}: {allow(known[0], ports, network)}"
    choices = "; ".join(
        f"with {each.kind}: {allow(each, ports, network)}" for each in known
    )
    return (
        f"{choices}. 'ringleader doctor' over there tells which firewall it has, and "
        "its rule"
    )


def _format(ports: range, between: str) -> str:
    first, last = ports[0], ports[-1]
    return str(first) if first == last else f"{first}{between}{last}"
