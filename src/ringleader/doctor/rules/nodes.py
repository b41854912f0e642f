"""What nodes that were reached tell about each other. Pure."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Iterator
from itertools import combinations

from ringleader.doctor.facts import Candidate, Facts, Visit
from ringleader.doctor.finding import Code, Finding, Severity
from ringleader.ids import NodeId, short
from ringleader.topology.interfaces import Interface

CLOCK_S = 2.0
"""Clocks that differ by less confuse nobody who compares two logs."""


# -- identity --------------------------------------------------------------------------


def clones(facts: Facts) -> Iterator[Finding]:
    """Keys that two machines use."""
    told: set[NodeId] = set()
    by_node: dict[NodeId, list[Candidate]] = {}
    for candidate in facts.candidates:
        for node in {v.node for v in candidate.reached if v.node is not None}:
            by_node.setdefault(node, []).append(candidate)
    for node, owners in by_node.items():
        away = [c for c in owners if not c.is_here]
        is_ours = node in facts.own
        if away and (is_ours or (len(away) > 1 and _are_apart(away))):
            told.add(node)
            who = " and ".join([facts.name] * is_ours + [c.title for c in away])
            yield _cloned(f"One key is used twice: {who} are all node {short(node)}")
    if not told:
        yield from _clones_of_others(facts)


def _are_apart(owners: list[Candidate]) -> bool:
    """Whether they are different machines; a node that starts anew is the same one."""
    hosts = [{host for host, _ in c.places} for c in owners]
    return all(not a & b for a, b in combinations(hosts, 2))


def _clones_of_others(facts: Facts) -> Iterator[Finding]:
    """What agents have noticed; one of the two has ended since."""
    shots = [v.snapshot for c in facts.candidates for v in c.reached if v.snapshot]
    for text in dict.fromkeys(
        t for shot in [*shots, *facts.agents] for t in shot.clones
    ):
        what, _, _ = text.partition(":")
        yield _cloned(f"Agents have noticed: {what}")


def _cloned(text: str) -> Finding:
    mend = (
        "Was a home directory or a disk image copied? On one of the machines run "
        "'ringleader leave', which deletes the key, and 'ringleader join' again."
    )
    return Finding(Code.CLONED_IDENTITY, f"{text}.", mend)


# -- clocks ----------------------------------------------------------------------------


def clocks(facts: Facts) -> Iterator[Finding]:
    """Machines whose wall clocks differ by more than two seconds."""
    ahead = {c: s for c in facts.members if (s := _ahead_s(c)) is not None}
    off = {c: s for c, s in ahead.items() if abs(s) > CLOCK_S}
    if len(off) > 1 and len(off) == len(ahead) and _spread_s(off.values()) < CLOCK_S:
        others = ", ".join(c.title for c in off)
        some = next(iter(off.values()))
        text = f"The clock of {facts.name} is {_by(-some)} those of {others}."
        yield _skewed(text, facts.name)
        return
    for candidate, seconds in off.items():
        text = f"The clock of {candidate.title} is {_by(seconds)} that of {facts.name}."
        yield _skewed(text, f"{candidate.title}, or {facts.name} if that one is wrong")


def _ahead_s(candidate: Candidate) -> float | None:
    found = [v.clock_ahead_s for v in candidate.reached if v.clock_ahead_s is not None]
    return min(found, key=abs, default=None)


def _spread_s(values: Iterable[float]) -> float:
    found = list(values)
    return max(found) - min(found)


def _by(seconds: float) -> str:
    return f"{_span(abs(seconds))} {'ahead of' if seconds > 0 else 'behind'}"


def _span(seconds: float) -> str:
    for size, unit in ((86400, "days"), (3600, "hours"), (60, "minutes")):
        if seconds >= 2 * size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.1f} seconds"


def _skewed(text: str, where: str) -> Finding:
    return Finding(
        Code.CLOCK_SKEW,
        f"{text} Links do not mind, but logs and files with dates will not match.",
        f"Let {where} set its clock from the network: 'timedatectl set-ntp true' on "
        "Linux, 'Set time automatically' on a Mac and on Windows.",
        Severity.WARNING,
    )


# -- subnets ---------------------------------------------------------------------------


def two_subnets(facts: Facts) -> Iterator[Finding]:
    """Two interfaces in different networks, of which only one leads to somebody."""
    for one, two in combinations(facts.chosen, 2):
        if _share_network(one, two):
            continue
        for via, other in ((one, two), (two, one)):
            halfway = [
                c
                for c in facts.members
                if _leads(via, c.reached) and not _leads(other, c.reached)
            ]
            if halfway:
                yield _two(facts, via, other, halfway)
                break


def _share_network(one: Interface, two: Interface) -> bool:
    return any(one.holds(a.ip) for a in two.addresses) or any(
        two.holds(a.ip) for a in one.addresses
    )


def _leads(interface: Interface, visits: list[Visit]) -> bool:
    return any(interface.holds(ipaddress.ip_address(v.place[0])) for v in visits)


def _two(
    facts: Facts, via: Interface, other: Interface, halfway: list[Candidate]
) -> Finding:
    who = ", ".join(c.title for c in halfway)
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
