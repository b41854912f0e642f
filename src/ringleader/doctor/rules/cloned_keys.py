"""Rule: do two machines use one node key? Pure."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations

from ringleader.doctor.facts import Candidate, Facts
from ringleader.doctor.finding import Code, Finding
from ringleader.ids import NodeId, short


def cloned_keys(facts: Facts) -> Iterator[Finding]:
    """Find keys that two machines use."""
    reported: set[NodeId] = set()
    by_node: dict[NodeId, list[Candidate]] = {}
    for candidate in facts.candidates:
        for node in {d.node for d in candidate.reached if d.node is not None}:
            by_node.setdefault(node, []).append(candidate)
    for node, owners in by_node.items():
        away = [c for c in owners if not c.is_here]
        is_ours = node in facts.own
        if away and (is_ours or (len(away) > 1 and _are_apart(away))):
            reported.add(node)
            who = " and ".join([facts.name] * is_ours + [c.title for c in away])
            yield _cloned(f"One key is used twice: {who} are all node {short(node)}")
    if not reported:
        yield from _reported_by_agents(facts)


def _are_apart(owners: list[Candidate]) -> bool:
    """Return whether they are different machines, and not one node that restarted."""
    hosts = [{host for host, _ in c.addresses} for c in owners]
    return all(not a & b for a, b in combinations(hosts, 2))


def _reported_by_agents(facts: Facts) -> Iterator[Finding]:
    """Return what agents have noticed before; one of the two nodes has ended since."""
    theirs = [d.snapshot for c in facts.candidates for d in c.reached if d.snapshot]
    texts = [text for shot in [*theirs, *facts.agents] for text in shot.clones]
    for text in dict.fromkeys(texts):
        what, _, _ = text.partition(":")
        yield _cloned(f"Agents have noticed: {what}")


def _cloned(text: str) -> Finding:
    mend = (
        "Was a home directory or a disk image copied? On one of the machines run "
        "'ringleader leave', which deletes the key, and 'ringleader join' again."
    )
    return Finding(Code.CLONED_IDENTITY, f"{text}.", mend)
