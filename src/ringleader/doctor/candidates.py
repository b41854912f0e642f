"""Candidates: where nodes may be, and which of these are the same node. Pure."""

from __future__ import annotations

import ipaddress
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from ringleader.discovery.multicast_check import MulticastReport, SeenNode
from ringleader.discovery.record import RecordRefusal
from ringleader.discovery.static_peers import ResolvedPeer
from ringleader.doctor.facts import Address, Candidate, Source, format_address
from ringleader.node.protocol.snapshot import Snapshot
from ringleader.topology.interfaces import Interface
from ringleader.topology.node_profile import clean

MAX_HINTS = 32
"""Per source; more nodes than a home has."""
MAX_FOREIGN = 4
"""Anyone can announce anything; a few are worth mentioning."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hint:
    """Addresses where a node may be."""

    source: Source
    addresses: tuple[Address, ...]
    to_dial: tuple[Address, ...]
    known_as: str = ""
    trouble: str = ""


def from_named_peers(peers: Iterable[ResolvedPeer]) -> list[Hint]:
    """Return hints to the peers the user named."""
    found = []
    for resolved in peers:
        addresses = tuple((host, resolved.peer.port) for host in resolved.addresses)
        hint = Hint(
            source=Source.NAMED,
            addresses=addresses,
            to_dial=addresses,
            known_as=str(resolved.peer),
            trouble=resolved.trouble,
        )
        found.append(hint)
    return found


def from_snapshots(snapshots: Iterable[Snapshot]) -> list[Hint]:
    """Return hints to the healthy members that agents know."""
    found: dict[Address, Hint] = {}
    for snapshot in snapshots:
        for row in snapshot.nodes:
            address = _parse(row.address)
            is_usable = row.in_view and row.health == "healthy" and not row.is_here
            if address is None or not is_usable or len(found) >= MAX_HINTS:
                continue
            found[address] = Hint(
                source=Source.MEMBER,
                addresses=(address,),
                to_dial=(address,),
                known_as=f"{clean(row.name)} at {format_address(address)}",
            )
    return list(found.values())


def _parse(text: str) -> Address | None:
    """Parse the address in a row of a snapshot; None if it is none."""
    host, _, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    try:
        ipaddress.ip_address(host)
        return (host, int(port)) if 0 < int(port) < 65536 else None
    except ValueError:
        return None


def from_multicast(
    reports: Iterable[MulticastReport], chosen: Sequence[Interface]
) -> list[Hint]:
    """Return hints to the nodes that announce themselves by multicast.

    Only members are dialled, and only at addresses in our own networks: what strangers
    announce is not for us and could lead anywhere.
    """
    seen: dict[str, SeenNode] = {}
    for report in reports:
        for label, each in report.seen.items():
            if each.refusal is None or label not in seen:
                seen[label] = each
    ours = [e for e in seen.values() if e.refusal is None]
    foreign = [e for e in seen.values() if e.refusal is RecordRefusal.FOREIGN]
    return [
        *(_hint(each, Source.SEEN, chosen) for each in ours[:MAX_HINTS]),
        *(_hint(each, Source.FOREIGN, ()) for each in foreign[:MAX_FOREIGN]),
    ]


def _hint(seen: SeenNode, source: Source, chosen: Sequence[Interface]) -> Hint:
    addresses = tuple((host, seen.port) for host in seen.addresses)
    near = tuple(each for each in addresses if _lies_in(each[0], chosen))
    return Hint(source=source, addresses=addresses, to_dial=near)


def _lies_in(host: str, chosen: Sequence[Interface]) -> bool:
    ip = ipaddress.ip_address(host)
    return any(interface.holds(ip) for interface in chosen)


def merge(candidates: Iterable[Candidate]) -> list[Candidate]:
    """Return each node once, however many ways it became known."""
    found: list[Candidate] = []
    for new in candidates:
        same = [old for old in found if _marks(old) & _marks(new)]
        found = [old for old in found if old not in same]
        for old in same:
            new = _united(old, new)
        found.append(new)
    return found


def _marks(candidate: Candidate) -> set[object]:
    """Return what only one incarnation of one node can have."""
    lives = {(d.node, d.incarnation) for d in candidate.dials if d.node is not None}
    return {*candidate.addresses, *lives}


def _united(old: Candidate, new: Candidate) -> Candidate:
    return replace(
        old,
        addresses=tuple(dict.fromkeys([*old.addresses, *new.addresses])),
        sources=old.sources | new.sources,
        dials=tuple({d.address: d for d in [*new.dials, *old.dials]}.values()),
        known_as=old.known_as or new.known_as,
        is_here=old.is_here or new.is_here,
        link=old.link or new.link,
        trouble=old.trouble or new.trouble,
    )


def heard_hosts(reports: Iterable[MulticastReport]) -> set[str]:
    """Return the hosts whose multicast reached us, or which ours reached."""

    def hosts() -> Iterator[str]:
        for report in reports:
            yield from report.heard
            yield from report.answered
            for seen in report.seen.values():
                if seen.source in report.heard | report.answered:
                    yield from seen.addresses  # the others answered unicast only

    return set(hosts())


def answering_hosts(reports: Iterable[MulticastReport]) -> set[str]:
    """Return the hosts that answered this machine, and not just everyone."""
    return {host for r in reports for host in r.answered | r.answered_directly}


def is_here(hint: Hint, own: Collection[str]) -> bool:
    """Return whether a hint leads to this machine."""
    return any(host in own for host, _ in hint.addresses)
