"""Rule: which nodes cannot be reached, and why? Pure.

Each node gets one cause, the most informative one.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator

from ringleader.doctor.facts import (
    Candidate,
    DialOutcome,
    DialResult,
    Facts,
    LinkOutcome,
    Source,
    format_address,
)
from ringleader.doctor.finding import Code, Finding
from ringleader.doctor.firewall_command import allow_over_there
from ringleader.doctor.rules.secrets import has_other_secret

EXAMPLE_PORTS = range(29600, 29604)
"""Ports for tensors to advise, where the user has not chosen any."""


def reachability(facts: Facts) -> Iterator[Finding]:
    """Find nodes that cannot be reached, blocked ports, and links that lose packets."""
    for candidate in facts.candidates:
        if candidate.is_here and candidate.outcome is not DialOutcome.REACHED:
            continue  # an agent on this machine that just ended
        if candidate.sources != {Source.FOREIGN}:
            yield from _check(facts, candidate)


def _check(facts: Facts, candidate: Candidate) -> Iterator[Finding]:
    outcome = candidate.outcome
    if outcome is DialOutcome.REACHED:
        yield from _large_packets(facts, candidate)
        yield from _other_ports(facts, candidate)
    elif outcome is DialOutcome.OTHER_VERSION or has_other_secret(candidate):
        return  # findings of their own
    elif not facts.chosen:
        return  # without a network nothing can be reached, and that is a finding
    elif candidate.addresses and not _families(candidate) & facts.families:
        yield _other_family(facts, candidate)
    elif outcome is DialOutcome.SILENT and _is_firewall(facts, candidate):
        yield _blocked(facts, candidate)
    elif outcome not in (DialOutcome.NO_DESCRIPTOR, DialOutcome.NO_TIME):
        yield _unreachable(facts, candidate)


# -- packets and ports -----------------------------------------------------------------


def _large_packets(facts: Facts, candidate: Candidate) -> Iterator[Finding]:
    is_lost = all(d.needs_small_segments for d in candidate.reached)
    is_lost |= candidate.link is not None and candidate.link.needs_small_segments
    if not is_lost:
        return
    here = facts.interface_to(candidate.reached[0].address[0])
    mtu = f" (MTU {here.mtu} on {here.name} here)" if here else ""
    text = (
        f"Small packets reach {candidate.title} and come back, packets of the usual "
        f"size get lost on the way{mtu}: connections open and then stall."
    )
    mend = (
        "Give all machines and the switch or access point between them the same MTU, "
        "1500 unless all can do jumbo frames; over a VPN or a PPPoE line set 1280 on "
        "both machines (ip link set dev NAME mtu 1280)."
    )
    yield Finding(Code.MTU, text, mend)


def _other_ports(facts: Facts, candidate: Candidate) -> Iterator[Finding]:
    if candidate.link is None or candidate.link.outcome is not LinkOutcome.BLOCKED:
        return
    text = (
        f"{candidate.title} answers, but a new port that it opened for {facts.name} "
        "cannot be reached. Tensors travel over such ports."
    )
    ports, before = facts.tensor_ports, ""
    if not ports[0]:
        ports = EXAMPLE_PORTS
        option = f"--tensor-port {ports[0]}-{ports[-1]}"
        before = (
            f"Start all machines with `ringleader run {option} script.py` (elsewhere "
            f"RINGLEADER_PORTS={ports[0]}-{ports[-1]}). "
        )
    yield Finding(Code.BLOCKED_PORT, text, before + _rule(facts, candidate, ports))


def _rule(facts: Facts, candidate: Candidate, ports: range) -> str:
    """Return what to do on the machine of ``candidate``, which blocks ``ports``."""
    network = facts.network_of(candidate.addresses[0][0])
    which = f"TCP port {ports[0]}" + (f" to {ports[-1]}" if len(ports) > 1 else "")
    commands = allow_over_there(candidate.system, [ports], network)
    return f"In the firewall over there allow {which}: {commands}."


def _blocked(facts: Facts, candidate: Candidate) -> Finding:
    silent = [d for d in candidate.dials if d.outcome is DialOutcome.SILENT]
    addresses = ", ".join(format_address(dial.address) for dial in silent)
    text = (
        f"The machine of the node at {addresses} is there, but this port of it does "
        f"not answer {facts.name}: a firewall drops what is sent there."
    )
    port = candidate.addresses[0][1]
    rule = _rule(facts, candidate, range(port, port + 1))
    return Finding(Code.BLOCKED_PORT, text, rule)


def _is_firewall(facts: Facts, candidate: Candidate) -> bool:
    """Return whether silence means a firewall.

    It does if the host answers other questions. On our own LAN it also does if nothing
    is heard of it: there the kernel asks for its hardware address first, and would
    report that no host has it. A host whose multicast is heard and that answers nothing
    by unicast is separated from us by the network instead.
    """
    if candidate.is_answering or candidate.is_heard:
        return candidate.is_answering
    silent = [d for d in candidate.dials if d.outcome is DialOutcome.SILENT]
    return any(facts.interface_to(d.address[0]) is not None for d in silent)


# -- address families and the rest -----------------------------------------------------


def _families(candidate: Candidate) -> set[int]:
    return {ipaddress.ip_address(host).version for host, _ in candidate.addresses}


def _other_family(facts: Facts, candidate: Candidate) -> Finding:
    theirs = "IPv6" if _families(candidate) == {6} else "IPv4"
    ours = "IPv4" if theirs == "IPv6" else "IPv6"
    names = ", ".join(each.name for each in facts.chosen)
    text = (
        f"{_subject(candidate)} is known by {theirs} only, and {facts.name} has only "
        f"{ours} ({names})."
    )
    mend = (
        f"Turn on {theirs} on {facts.name}, or {ours} on the other machine: set the "
        "interface to automatic (DHCP) there, and let the router hand out addresses."
    )
    return Finding(Code.OTHER_FAMILY, text, mend)


def _subject(candidate: Candidate) -> str:
    return f"The node {candidate.known_as or candidate.where}"


def _unreachable(facts: Facts, candidate: Candidate) -> Finding:
    how = {
        Source.NAMED: "was named",
        Source.MEMBER: "is in the cluster, as another agent reports,",
        Source.SEEN: "announces itself on this network",
    }
    known = next(
        how[s]
        for s in (Source.SEEN, Source.MEMBER, Source.NAMED)
        if s in candidate.sources
    )
    why, mend = _reason(facts, candidate)
    subject = _subject(candidate)
    text = f"{subject} {known} but cannot be reached from {facts.name}: {why}"
    return Finding(Code.UNREACHABLE, text, mend)


_ISOLATED = (
    "Is the machine on, and on the same network? On Wi-Fi turn off 'client isolation' "
    "(also 'AP isolation', 'guest network') in the access point, or use a cable."
)
_REASONS = {
    DialOutcome.REFUSED: (
        "its machine refuses the connection, so nothing listens there now.",
        "Start ringleader there, or correct the port: after a restart it may be "
        "another one; 'ringleader status' over there shows it.",
    ),
    DialOutcome.STRANGE: (
        "what answers there is not ringleader.",
        "Correct the port: 'ringleader status' over there shows it.",
    ),
    DialOutcome.HUNG_UP: (
        "it closes the connection before the handshake ends.",
        "It may just be ending, or have too many connections. Try again; if that does "
        "not help, restart it.",
    ),
    DialOutcome.STALLED: (
        "it accepts the connection and does not answer.",
        "Look at that machine: it may be very busy, out of memory, asleep, or the "
        "agent may be stopped. 'ringleader status' there should answer in a second.",
    ),
    DialOutcome.NO_HOST: ("no machine answers at its address.", _ISOLATED),
    DialOutcome.SILENT: (
        "nothing comes back from its address.",
        "Is the machine on? Is the port open in its firewall and in the router "
        "between the two networks?",
    ),
}


def _reason(facts: Facts, candidate: Candidate) -> tuple[str, str]:
    if candidate.trouble:
        return f"{candidate.trouble}.", "Correct the name, or give an address."
    best = candidate.best
    if candidate.is_heard and candidate.outcome is DialOutcome.SILENT:
        return "its multicast arrives, but no packet for us alone.", _ISOLATED
    if best is None or best.outcome is DialOutcome.NO_ROUTE:
        return _no_route(facts, candidate, best)
    return _REASONS[best.outcome]


def _no_route(
    facts: Facts, candidate: Candidate, best: DialResult | None
) -> tuple[str, str]:
    said = f" ({best.text})" if best else ""
    networks = ", ".join(
        str(a.network) for each in facts.chosen for a in each.addresses
    )
    why = (
        f"its addresses ({candidate.where}) are in none of the networks of this "
        f"machine ({networks or 'none'}){said}."
    )
    mend = "Connect both machines to the same network, or give both the same subnet."
    return why, mend
