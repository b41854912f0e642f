"""Rule: is this machine on two networks of which one leads to no node? Pure."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator
from itertools import combinations

from ringleader.doctor.facts import Candidate, DialResult, Facts
from ringleader.doctor.finding import Code, Finding, Severity
from ringleader.topology.interfaces import Interface


def subnets(facts: Facts) -> Iterator[Finding]:
    """Find two interfaces in different networks, one of which leads to some nodes."""
    for one, two in combinations(facts.chosen, 2):
        if _share_network(one, two):
            continue
        for via, other in ((one, two), (two, one)):
            partial = [
                c
                for c in facts.members
                if _leads(via, c.reached) and not _leads(other, c.reached)
            ]
            if partial:
                yield _finding(facts, via, other, partial)
                break


def _share_network(one: Interface, two: Interface) -> bool:
    return any(one.holds(a.ip) for a in two.addresses) or any(
        two.holds(a.ip) for a in one.addresses
    )


def _leads(interface: Interface, dials: list[DialResult]) -> bool:
    return any(interface.holds(ipaddress.ip_address(d.address[0])) for d in dials)


def _finding(
    facts: Facts, via: Interface, other: Interface, partial: list[Candidate]
) -> Finding:
    who = ", ".join(c.title for c in partial)
    text = (
        f"{facts.name} is on two networks, {_net(via)} and {_net(other)}, and {who} "
        f"can be reached by {via.name} only. A machine that is only on the network of "
        f"{other.name} cannot reach them, and no ring goes through all."
    )
    mend = (
        f"Connect all machines to one network; or use only the one that all share: "
        f"ringleader run --interface {via.name}, or RINGLEADER_INTERFACES={via.name}."
    )
    return Finding(Code.TWO_SUBNETS, text, mend, Severity.WARNING)


def _net(interface: Interface) -> str:
    return f"{interface.name} ({interface.addresses[0].network})"
