"""Whether nodes can find each other by themselves. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from ringleader.discovery.multicast import PORT, UnavailableReason
from ringleader.discovery.multicast_check import MulticastReport
from ringleader.doctor.facts import Candidate, Facts
from ringleader.doctor.finding import Code, Finding


def multicast(facts: Facts) -> Iterator[Finding]:
    """Interfaces on which multicast does not work, as far as anybody can tell.

    Silence alone proves nothing: a machine may be the only one. Somebody who is reached
    and never heard does.
    """
    by_name: dict[str, list[MulticastReport]] = {}
    for probe in facts.probes:
        by_name.setdefault(probe.interface, []).append(probe)
    for name, probes in by_name.items():
        troubles = [p.trouble for p in probes if p.trouble is not None]
        if any(t.why is UnavailableReason.PORT_TAKEN for t in troubles):
            continue  # told as a port
        if len(troubles) == len(probes):
            yield _no_multicast(f"On {facts.name}: {troubles[0].text}.", _MEND_HERE)
        elif not any(p.loops_back or p.has_multicast for p in probes):
            text = (
                f"On {name} of {facts.name} not even our own multicast comes back: a "
                f"firewall on this machine drops UDP port {PORT}."
            )
            yield _no_multicast(text, _MEND_HERE)
        else:
            yield from _multicast_lost(facts, name, probes)


_MEND_HERE = (
    f"In the firewall of this machine allow UDP port {PORT} in and out ('ufw allow "
    "mdns' or 'firewall-cmd --add-service=mdns'); or name the other nodes: --peers "
    "host:port."
)


def _multicast_lost(
    facts: Facts, name: str, probes: list[MulticastReport]
) -> Iterator[Finding]:
    """Nodes that we reach on this interface, and whose multicast we never hear."""
    deaf = [
        candidate
        for candidate in facts.members
        if not candidate.is_heard and _interface_of(facts, candidate) == name
    ]
    if not deaf:
        return
    who = ", ".join(c.title for c in deaf)
    direct = {host for p in probes for host in p.answered_directly}
    asked = any(place[0] in direct for c in deaf for place in c.places)
    others = len({host for p in probes for host in p.heard | p.answered})
    text = (
        f"{facts.name} reaches {who}, but no multicast passes between them on {name}"
        + (", though it answers when it is asked directly" if asked else "")
        + (f"; multicast of {others} other hosts does come" if others else "")
        + ". So they do not find each other by themselves."
    )
    for reason in _said(deaf):
        text += f" It says itself: {reason}."
    mend = (
        "In the router or access point turn on multicast between clients and off "
        "'client isolation'; in a managed switch turn off IGMP snooping or turn on its "
        f"querier; on both machines allow UDP port {PORT}. Until then name the others: "
        f"ringleader run --peers {deaf[0].where.partition(',')[0]} script.py."
    )
    yield _no_multicast(text, mend)


def _said(deaf: list[Candidate]) -> list[str]:
    """What the agents over there know of their own discovery."""
    shots = [v.snapshot for c in deaf for v in c.reached if v.snapshot is not None]
    words = [t for shot in shots for t in shot.troubles if t.startswith("no discovery")]
    return [word.partition("; name")[0] for word in dict.fromkeys(words)]


def _interface_of(facts: Facts, candidate: Candidate) -> str | None:
    found = [facts.interface_to(v.place[0]) for v in candidate.reached]
    return next((each.name for each in found if each is not None), None)


def _no_multicast(text: str, mend: str) -> Finding:
    return Finding(Code.NO_MULTICAST, text, mend)
