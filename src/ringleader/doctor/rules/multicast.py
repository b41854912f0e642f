"""Rule: can nodes find each other by multicast? Pure."""

from __future__ import annotations

from collections.abc import Iterator

from ringleader.discovery.multicast import PORT, UnavailableReason
from ringleader.discovery.multicast_check import MulticastReport
from ringleader.doctor.facts import Candidate, Facts, format_address
from ringleader.doctor.finding import Code, Finding
from ringleader.node.protocol.agent_port import AGENT_PORT


def multicast(facts: Facts) -> Iterator[Finding]:
    """Find interfaces on which multicast does not work.

    Silence alone proves nothing: the machine may be the only one. A node that is
    reached by unicast and never heard by multicast is proof. Nodes that find each other
    through a coordinator do without.
    """
    if any(agent.coordinator for agent in facts.agents):
        return
    by_name: dict[str, list[MulticastReport]] = {}
    for report in facts.multicast:
        by_name.setdefault(report.interface, []).append(report)
    for name, reports in by_name.items():
        troubles = [r.trouble for r in reports if r.trouble is not None]
        if any(t.why is UnavailableReason.PORT_TAKEN for t in troubles):
            continue  # reported as a taken port
        if len(troubles) == len(reports):
            yield _no_multicast(f"On {facts.name}: {troubles[0].text}.", _MEND_HERE)
        elif not any(r.loops_back or r.has_multicast for r in reports):
            text = (
                f"On {name} of {facts.name} not even our own multicast comes back: a "
                f"firewall on this machine drops UDP port {PORT}."
            )
            yield _no_multicast(text, _MEND_HERE)
        else:
            yield from _multicast_lost(facts, name, reports)


_MEND_HERE = (
    f"In the firewall of this machine allow UDP port {PORT} in and out ('ufw allow "
    "mdns' or 'firewall-cmd --add-service=mdns'); or name a machine that all others "
    "reach: `ringleader run --peers HOST script.py`."
)


def _multicast_lost(
    facts: Facts, name: str, reports: list[MulticastReport]
) -> Iterator[Finding]:
    """Find nodes that are reached on this interface but never heard by multicast."""
    unheard = [
        candidate
        for candidate in facts.members
        if not candidate.is_heard and _interface_of(facts, candidate) == name
    ]
    if not unheard:
        return
    who = ", ".join(c.title for c in unheard)
    direct = {host for r in reports for host in r.answered_directly}
    is_direct = any(address[0] in direct for c in unheard for address in c.addresses)
    others = len({host for r in reports for host in r.heard | r.answered})
    text = (
        f"{facts.name} reaches {who}, but no multicast passes between them on {name}"
        + (", though it answers when it is asked directly" if is_direct else "")
        + (f"; multicast of {others} other hosts does arrive" if others else "")
        + ". So they do not find each other by themselves."
    )
    for reason in _reported_by(unheard):
        text += f" Its own agent reports: {reason}."
    mend = (
        "In the router or access point turn on multicast between clients and turn off "
        "'client isolation'; in a managed switch turn off IGMP snooping or turn on its "
        f"querier; on both machines allow UDP port {PORT}. Until then name a "
        f"machine that all others reach: {_named(unheard[0])}."
    )
    yield _no_multicast(text, mend)


def _named(candidate: Candidate) -> str:
    """Return the command line that names a node which was reached.

    Its port is the same in the next run only if it is the usual one, or asked for.
    """
    host, port = candidate.reached[0].address
    line = f"`ringleader run --peers {format_address((host, port))} script.py`"
    if port == AGENT_PORT:
        return line
    return f"{line}, and on {host} itself `ringleader run --port {port} script.py`"


def _reported_by(unheard: list[Candidate]) -> list[str]:
    """Return what the agents over there report about their own discovery."""
    snapshots = [
        dial.snapshot
        for candidate in unheard
        for dial in candidate.reached
        if dial.snapshot is not None
    ]
    words = [t for s in snapshots for t in s.troubles if t.startswith("no discovery")]
    return [word.partition("; name")[0] for word in dict.fromkeys(words)]


def _interface_of(facts: Facts, candidate: Candidate) -> str | None:
    found = [facts.interface_to(dial.address[0]) for dial in candidate.reached]
    return next((each.name for each in found if each is not None), None)


def _no_multicast(text: str, mend: str) -> Finding:
    return Finding(Code.NO_MULTICAST, text, mend)
