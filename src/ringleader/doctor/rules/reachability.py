"""Why a node cannot be reached: one cause per node, the most telling one. Pure."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator

from ringleader.discovery.record import RecordRefusal
from ringleader.doctor.facts import (
    Candidate,
    Facts,
    Outcome,
    Pace,
    Source,
    Visit,
    spell,
)
from ringleader.doctor.finding import Code, Finding


def reach(facts: Facts) -> Iterator[Finding]:
    """Everybody who was looked for and not found, and all links with MTU trouble."""
    for candidate in facts.candidates:
        if candidate.is_here and candidate.outcome is not Outcome.REACHED:
            continue  # an agent here that ends is no trouble of the network
        if candidate.sources != {Source.FOREIGN}:
            yield from _judge(facts, candidate)


def _judge(facts: Facts, candidate: Candidate) -> Iterator[Finding]:
    outcome = candidate.outcome
    if outcome is Outcome.REACHED:
        yield from _large_packets(facts, candidate)
        yield from _other_ports(facts, candidate)
    elif outcome is Outcome.OTHER_VERSION:
        yield _other_version(facts, candidate)
    elif is_turned_away(candidate):
        return  # told with all others
    elif not facts.chosen:
        return  # nobody can be reached without a network, and that is told
    elif candidate.places and not _families(candidate) & facts.families:
        yield _other_family(facts, candidate)
    elif outcome is Outcome.SILENT and _is_firewall(facts, candidate):
        yield _blocked(facts, candidate)
    elif outcome not in (Outcome.NO_DESCRIPTOR, Outcome.NO_TIME):
        yield _unreachable(facts, candidate)


# -- secrets and versions --------------------------------------------------------------


def wrong_secrets(facts: Facts) -> Iterator[Finding]:
    """Nodes with another secret, where they are not just somebody else's.

    Who was named must be one of ours. Who only announces itself may belong to another
    cluster, so that is told only when nobody of ours is known: then it is likely us.
    """
    turned = [c for c in facts.candidates if is_turned_away(c)]
    meant = [c for c in turned if c.sources != {Source.FOREIGN}]
    strangers = [c for c in facts.candidates if c.sources == {Source.FOREIGN}]
    away = [c for c in facts.candidates if not c.is_here]
    is_alone = all(c.sources == {Source.FOREIGN} for c in away)
    guilty = meant or (strangers if is_alone else [])
    if guilty and facts.cluster:
        where = "; ".join(c.where for c in guilty)
        text = (
            f"{facts.name} is in cluster {facts.cluster}, and has another secret than "
            f"the node at {where}: one of the two is in another cluster, or a phrase "
            "was mistyped."
        )
        mend = (
            "On the machine that is wrong run 'ringleader leave', then 'ringleader "
            "join' with the phrase of the other ('ringleader invite' shows the way)."
        )
        yield Finding(Code.WRONG_SECRET, text, mend)


def is_turned_away(candidate: Candidate) -> bool:
    """Whether it has another secret. A node that announces itself with ours has not,
    and when it hangs up there is another reason."""
    if candidate.outcome is Outcome.HUNG_UP:
        return Source.SEEN not in candidate.sources
    return candidate.outcome is Outcome.FOREIGN


def _other_version(facts: Facts, candidate: Candidate) -> Finding:
    best = candidate.best
    assert best is not None
    version = f"ringleader {best.version}" if best.version else "another version"
    protocol = f", protocol {best.protocol}" if best.protocol else f" ({best.text})"
    text = (
        f"{candidate.title} runs {version}{protocol}; {facts.name} runs ringleader "
        f"{facts.version}, protocol {facts.protocol}. They cannot work together."
    )
    return Finding(Code.OTHER_VERSION, text, _UPGRADE)


def unreadable(facts: Facts) -> Iterator[Finding]:
    """Announcements of a version that we cannot even read.

    Nothing tells whose they are, so beside our own nodes they are not worth a word.
    """
    sources = {
        seen.source
        for probe in facts.probes
        for seen in probe.seen.values()
        if seen.refusal is RecordRefusal.OTHER_VERSION
    }
    if sources and all(c.is_here for c in facts.candidates):
        text = (
            f"A node at {', '.join(sorted(sources))} announces itself in a way that "
            f"ringleader {facts.version} on {facts.name} does not understand."
        )
        yield Finding(Code.OTHER_VERSION, text, _UPGRADE)


_UPGRADE = "Upgrade the older one: pip install --upgrade ringleader."


# -- packets and ports -----------------------------------------------------------------


def _large_packets(facts: Facts, candidate: Candidate) -> Iterator[Finding]:
    is_lost = all(v.needs_small for v in candidate.reached)
    is_lost |= candidate.link is not None and candidate.link.needs_small
    if not is_lost:
        return
    here = facts.interface_to(candidate.reached[0].place[0])
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
    if candidate.link is not None and candidate.link.pace is Pace.BLOCKED:
        text = (
            f"{candidate.title} answers, but a fresh port that it opened for "
            f"{facts.name} cannot be reached. Tensors travel over such ports."
        )
        yield Finding(
            Code.BLOCKED_PORT, text, _open_firewall("a program, or all ports")
        )


def _open_firewall(what: str) -> str:
    return (
        f"In the firewall over there allow {what} from the local network for Python: "
        "'ufw allow from YOUR-NETWORK' on Linux, System Settings > Network > Firewall "
        "on a Mac, 'Allow an app through firewall' on Windows."
    )


def _blocked(facts: Facts, candidate: Candidate) -> Finding:
    places = ", ".join(
        spell(v.place) for v in candidate.visits if v.outcome is Outcome.SILENT
    )
    text = (
        f"The machine of the node at {places} is there, but this port of it does not "
        f"answer {facts.name}: a firewall drops what is sent there."
    )
    port = candidate.places[0][1]
    return Finding(Code.BLOCKED_PORT, text, _open_firewall(f"TCP port {port}"))


def _is_firewall(facts: Facts, candidate: Candidate) -> bool:
    """Whether silence means a firewall.

    It does when the host answers other questions. On our own LAN it also does when we
    hear nothing of it: there the kernel looks for its hardware address first, and would
    say that nobody has it. But who is heard by all and answers us nothing is kept apart
    from us by the network.
    """
    if candidate.is_answering or candidate.is_heard:
        return candidate.is_answering
    silent = [v for v in candidate.visits if v.outcome is Outcome.SILENT]
    return any(facts.interface_to(v.place[0]) is not None for v in silent)


# -- families and all the rest ---------------------------------------------------------


def _families(candidate: Candidate) -> set[int]:
    return {ipaddress.ip_address(host).version for host, _ in candidate.places}


def _other_family(facts: Facts, candidate: Candidate) -> Finding:
    theirs = "IPv6" if _families(candidate) == {6} else "IPv4"
    ours = "IPv4" if theirs == "IPv6" else "IPv6"
    names = ", ".join(each.name for each in facts.chosen)
    text = (
        f"{_who(candidate)} is known by {theirs} only, and {facts.name} has only "
        f"{ours} ({names})."
    )
    mend = (
        f"Turn on {theirs} on {facts.name}, or {ours} on the other machine: set the "
        "interface to automatic (DHCP) there, and let the router hand out addresses."
    )
    return Finding(Code.OTHER_FAMILY, text, mend)


def _who(candidate: Candidate) -> str:
    return f"The node {candidate.known_as or candidate.where}"


def _unreachable(facts: Facts, candidate: Candidate) -> Finding:
    how = {
        Source.NAMED: "was named",
        Source.MEMBER: "is in the cluster, as another agent says,",
        Source.SEEN: "announces itself on this network",
    }
    known = next(
        how[s]
        for s in (Source.SEEN, Source.MEMBER, Source.NAMED)
        if s in candidate.sources
    )
    why, mend = _reason(facts, candidate)
    text = f"{_who(candidate)} {known} but cannot be reached from {facts.name}: {why}"
    return Finding(Code.UNREACHABLE, text, mend)


_ISOLATED = (
    "Is the machine on, and on the same network? On Wi-Fi turn off 'client isolation' "
    "(also 'AP isolation', 'guest network') in the access point, or use a cable."
)
_REASONS = {
    Outcome.REFUSED: (
        "its machine refuses the connection, so nothing listens there now.",
        "Start ringleader there, or correct the port: it may have started anew with "
        "another one; 'ringleader status' over there shows it.",
    ),
    Outcome.STRANGE: (
        "what answers there is not ringleader.",
        "Correct the port: 'ringleader status' over there shows it.",
    ),
    Outcome.HUNG_UP: (
        "it hangs up before a word is said.",
        "Is it just ending, or crowded by other connections? Try again; if it stays "
        "so, start it anew.",
    ),
    Outcome.STALLED: (
        "it takes the connection and says nothing.",
        "Look at that machine: it may be very busy, out of memory, asleep, or the "
        "agent may be stopped. 'ringleader status' there should answer in a second.",
    ),
    Outcome.NO_HOST: ("no machine answers at its address.", _ISOLATED),
    Outcome.SILENT: (
        "nothing comes back from its address.",
        "Is the machine on? Is the port open in its firewall and in the router "
        "between the two networks?",
    ),
}


def _reason(facts: Facts, candidate: Candidate) -> tuple[str, str]:
    if candidate.trouble:
        return f"{candidate.trouble}.", "Correct the name, or give an address."
    best = candidate.best
    if candidate.is_heard and candidate.outcome is Outcome.SILENT:
        return "its multicast comes, and nothing that is for us alone.", _ISOLATED
    if best is None or best.outcome is Outcome.NO_WAY:
        return _no_way(facts, candidate, best)
    return _REASONS[best.outcome]


def _no_way(facts: Facts, candidate: Candidate, best: Visit | None) -> tuple[str, str]:
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
