"""Where a node may be, and who turns out to be the same one. Pure."""

from __future__ import annotations

import ipaddress
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from ringleader.discovery.multicast_check import MulticastReport, SeenNode
from ringleader.discovery.record import RecordRefusal
from ringleader.discovery.static_peers import ResolvedPeer
from ringleader.doctor.facts import Candidate, Place, Source, spell
from ringleader.node.protocol.snapshot import Snapshot
from ringleader.topology.interfaces import Interface
from ringleader.topology.node_profile import clean

MAX_LEADS = 32
"""Per kind; more nodes than a home has."""
MAX_FOREIGN = 4
"""Anybody can announce anything; a few are worth mentioning."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lead:
    """A hint where a node may be."""

    source: Source
    places: tuple[Place, ...]
    to_dial: tuple[Place, ...]
    known_as: str = ""
    trouble: str = ""


def from_answers(answers: Iterable[ResolvedPeer]) -> list[Lead]:
    """What the user named."""
    found = []
    for answer in answers:
        places = tuple((host, answer.peer.port) for host in answer.addresses)
        lead = Lead(
            source=Source.NAMED,
            places=places,
            to_dial=places,
            known_as=str(answer.peer),
            trouble=answer.trouble,
        )
        found.append(lead)
    return found


def from_agents(shots: Iterable[Snapshot]) -> list[Lead]:
    """Members that agents have links to."""
    found: dict[Place, Lead] = {}
    for shot in shots:
        for row in shot.nodes:
            place = _parse(row.address)
            is_worth_it = row.in_view and row.health == "healthy" and not row.is_here
            if place is None or not is_worth_it or len(found) >= MAX_LEADS:
                continue
            found[place] = Lead(
                source=Source.MEMBER,
                places=(place,),
                to_dial=(place,),
                known_as=f"{clean(row.name)} at {spell(place)}",
            )
    return list(found.values())


def _parse(text: str) -> Place | None:
    """The address in a row of a snapshot; None for anything else."""
    host, _, port = text.rpartition(":")
    try:
        ipaddress.ip_address(host)
        return (host, int(port)) if 0 < int(port) < 65536 else None
    except ValueError:
        return None


def from_probes(
    probes: Iterable[MulticastReport], chosen: Sequence[Interface]
) -> list[Lead]:
    """Who announces itself.

    Only members are dialled, and only at addresses in our own networks: what strangers
    announce is not for us, and could lead anywhere.
    """
    seen: dict[str, SeenNode] = {}
    for probe in probes:
        for label, each in probe.seen.items():
            if each.refusal is None or label not in seen:
                seen[label] = each
    ours = [e for e in seen.values() if e.refusal is None][:MAX_LEADS]
    others = [e for e in seen.values() if e.refusal is RecordRefusal.FOREIGN][
        :MAX_FOREIGN
    ]
    return [
        *(_lead(each, Source.SEEN, chosen) for each in ours),
        *(_lead(each, Source.FOREIGN, ()) for each in others),
    ]


def _lead(seen: SeenNode, source: Source, chosen: Sequence[Interface]) -> Lead:
    places = tuple((host, seen.port) for host in seen.addresses)
    near = tuple(p for p in places if _lies_in(p[0], chosen))
    return Lead(source=source, places=places, to_dial=near)


def _lies_in(host: str, chosen: Sequence[Interface]) -> bool:
    ip = ipaddress.ip_address(host)
    return any(interface.holds(ip) for interface in chosen)


def merge(candidates: Iterable[Candidate]) -> list[Candidate]:
    """Each node once, whatever it was found by."""
    found: list[Candidate] = []
    for new in candidates:
        same = [old for old in found if _marks(old) & _marks(new)]
        found = [old for old in found if old not in same]
        for old in same:
            new = _united(old, new)
        found.append(new)
    return found


def _marks(candidate: Candidate) -> set[object]:
    """What only one life of one node can have."""
    lives = {(v.node, v.incarnation) for v in candidate.visits if v.node is not None}
    return {*candidate.places, *lives}


def _united(old: Candidate, new: Candidate) -> Candidate:
    return replace(
        old,
        places=tuple(dict.fromkeys([*old.places, *new.places])),
        sources=old.sources | new.sources,
        visits=tuple({v.place: v for v in [*new.visits, *old.visits]}.values()),
        known_as=old.known_as or new.known_as,
        is_here=old.is_here or new.is_here,
        link=old.link or new.link,
        trouble=old.trouble or new.trouble,
    )


def heard_hosts(probes: Iterable[MulticastReport]) -> set[str]:
    """Addresses of hosts whose multicast reached us, or whom ours reached."""

    def hosts() -> Iterator[str]:
        for probe in probes:
            yield from probe.heard
            yield from probe.answered
            for seen in probe.seen.values():
                if seen.source in probe.heard | probe.answered:
                    yield from seen.addresses  # the others answered only when called

    return set(hosts())


def answering_hosts(probes: Iterable[MulticastReport]) -> set[str]:
    """Addresses of hosts that answered us, and not just everybody."""
    return {host for p in probes for host in p.answered | p.answered_directly}


def is_ours(lead: Lead, own: Collection[str]) -> bool:
    """Whether it leads to this machine."""
    return any(host in own for host, _ in lead.places)
