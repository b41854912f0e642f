"""``checks``: one line per thing the doctor looked at, good or bad. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from ringleader.doctor.facts import (
    DialResult,
    Facts,
    LinkMeasurement,
    LinkOutcome,
    Source,
)
from ringleader.doctor.finding import Code, Finding
from ringleader.doctor.firewall_command import allow
from ringleader.ids import short
from ringleader.node.protocol.agent_port import AGENT_PORT
from ringleader.topology.interfaces import describe_refused


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that was looked at."""

    name: str
    is_ok: bool
    text: str


_CODES: dict[str, Collection[Code]] = {
    "cluster": (Code.NO_CLUSTER,),
    "interfaces": (Code.ONLY_VIRTUAL, Code.TWO_SUBNETS),
    "discovery": (Code.NO_MULTICAST, Code.COORDINATOR_LOST),
    "ports": (Code.PORT_TAKEN,),
    "firewall": (),
    "nodes": (
        Code.BLOCKED_PORT,
        Code.UNREACHABLE,
        Code.OTHER_FAMILY,
        Code.MTU,
        Code.LOST_NODE,
        Code.NO_OTHER_NODE,
    ),
    "secret": (Code.WRONG_SECRET,),
    "versions": (Code.OTHER_VERSION,),
    "identity": (Code.CLONED_IDENTITY,),
    "clocks": (Code.CLOCK_SKEW,),
    "links": (Code.SLOW_LINK, Code.LINK_FAILED),
    "descriptors": (Code.FEW_DESCRIPTORS,),
    "shared memory": (Code.LITTLE_SHARED_MEMORY,),
}


def checks(
    facts: Facts, findings: Iterable[Finding], *, is_verbose: bool = False
) -> list[Check]:
    """Return a line for each thing that was looked at, in a fixed order."""
    found = {finding.code for finding in findings}
    texts = {
        "cluster": facts.cluster or "in none",
        "interfaces": _interfaces(facts, is_verbose=is_verbose),
        "discovery": _discovery(facts),
        "ports": _ports(facts),
        "firewall": _firewall(facts),
        "nodes": _nodes(facts),
        "secret": _secret(facts),
        "versions": _versions(facts),
        "identity": _identity(facts),
        "clocks": _clocks(facts),
        "links": _links(facts),
        "descriptors": _descriptors(facts),
        "shared memory": _memory(facts),
    }
    return [
        Check(name, found.isdisjoint(codes), texts[name])
        for name, codes in _CODES.items()
    ]


def conclusion(facts: Facts, findings: Sequence[Finding]) -> str:
    """Return one sentence; it promises nothing about a network that was not tested."""
    if findings:
        number = _count(len(findings), "problem", "problems")
        return f"{facts.name}: {number} found."
    if any(shot.troubles for shot in facts.agents):
        return (
            f"{facts.name}: no cause was found here, but the agent of this machine "
            "reports problems; see above."
        )
    if not facts.members:
        return (
            f"{facts.name}: nothing is wrong on this machine, but there is no other "
            "node, so the network is not tested. Nodes run while a job does: start "
            "'ringleader run' on another machine, then run this again, and add --peer "
            "ADDRESS if it finds none."
        )
    return f"{facts.name}: nothing is wrong."


def _interfaces(facts: Facts, *, is_verbose: bool) -> str:
    used = [
        f"{each.name} ({each.kind}, {', '.join(str(a) for a in each.addresses)})"
        for each in facts.chosen
    ]
    if not used and not is_verbose:
        return "none that leads to a LAN; see below"
    left = describe_refused(facts.refused, is_complete=is_verbose)
    text = ", ".join(used) or "none that leads to a LAN"
    return f"{text}; not used: {left}" if left else text


def _discovery(facts: Facts) -> str:
    used = {agent.coordinator for agent in facts.agents if agent.coordinator}
    if used:
        return f"through the coordinator {', '.join(sorted(used))}"
    hosts = {host for r in facts.multicast for host in r.heard | r.answered}
    if not facts.multicast:
        return "not tried"
    if not hosts:
        return "multicast leaves this machine; no other machine was heard"
    return f"multicast of {_count(len(hosts), 'other address', 'other addresses')}"


def _ports(facts: Facts) -> str:
    wanted = f" and TCP {facts.wanted_port}" if facts.wanted_port else ""
    return f"UDP 5353{wanted}"


def _firewall(facts: Facts) -> str:
    """Name the firewall of this machine and the rule that it needs for others."""
    if facts.firewall is None:
        return "none found here"
    agent = facts.wanted_port or AGENT_PORT
    ports = [range(agent, agent + 1)]
    if facts.tensor_ports[0]:
        ports.append(facts.tensor_ports)
    networks = [str(a.network) for each in facts.chosen for a in each.addresses]
    rule = allow(facts.firewall, ports, next(iter(networks), ""))
    text = f"{facts.firewall.kind}; the rule for other machines, if it lacks it: {rule}"
    if not facts.tensor_ports[0]:
        text += "; it needs fixed ports for tensors, too: add --tensor-port 29600-29603"
    return text


def _nodes(facts: Facts) -> str:
    known = [c for c in facts.candidates if c.sources != {Source.FOREIGN}]
    if not facts.members and any(not c.is_here for c in known):
        return "some are known, none was reached; see below"
    if not facts.members:
        return (
            "no other node found; if one runs elsewhere now: ringleader doctor "
            "--peer HOST:PORT"
        )
    return "; ".join(each.title for each in facts.members)


def _secret(facts: Facts) -> str:
    strangers = [c for c in facts.candidates if c.sources == {Source.FOREIGN}]
    if not strangers:
        return "no node with another one"
    where = "; ".join(c.where for c in strangers)
    return f"of another cluster, unless it should be one of yours: {where}"


def _versions(facts: Facts) -> str:
    ours = f"{facts.version} here"
    others = [f"{dial.version} on {dial.name}" for dial in _dials(facts)]
    return ", ".join([ours, *others])


def _identity(facts: Facts) -> str:
    ours = ", ".join(sorted(short(node) for node in facts.own))
    return f"{ours} here" if ours else "no key here yet"


def _clocks(facts: Facts) -> str:
    apart = [abs(s) for d in _dials(facts) if (s := d.clock_ahead_s) is not None]
    return f"{max(apart):.1f} s apart at most" if apart else "no other to compare with"


def _dials(facts: Facts) -> list[DialResult]:
    return [candidate.reached[0] for candidate in facts.members]


def _links(facts: Facts) -> str:
    words = [f"{c.reached[0].name} {_link(c.link)}" for c in facts.members if c.link]
    return ", ".join(words) or "none to measure"


def _link(link: LinkMeasurement) -> str:
    if link.profile is None:
        is_known = link.outcome in (LinkOutcome.STALLED, LinkOutcome.BLOCKED)
        text = str(link.outcome) if is_known else "not measured"
        return f"{text} ({link.text})" if link.text else text
    slower = min(link.profile.out_bytes_per_s, link.profile.in_bytes_per_s) * 8e-6
    return f"{slower:.0f} Mbit/s, {link.profile.latency_s * 1e3:.1f} ms"


def _descriptors(facts: Facts) -> str:
    ours = facts.descriptors[:1]
    return "".join(f"{d.limit - d.used} of {d.limit} free" for d in ours) or "no limit"


def _memory(facts: Facts) -> str:
    memory = facts.memory
    if memory is None or not memory.path:
        return "no limit of its own"
    return f"{memory.free_bytes >> 20} MiB free in {memory.path}"


def _count(number: int, one: str, many: str) -> str:
    return f"{number} {one if number == 1 else many}"
