"""Rule: which links are slow or far, or could not be measured? Pure.

A link is slow below 50 Mbit/s or far below the best one. A cable that fell back to
100 Mbit/s beside others with 1 Gbit/s is slow; a Wi-Fi of 200 Mbit/s beside them is
not, and neither is 1 Gbit/s beside Thunderbolt.
"""

from __future__ import annotations

from collections.abc import Iterator

from ringleader.doctor.facts import Candidate, Facts, LinkOutcome
from ringleader.doctor.finding import Code, Finding, Severity
from ringleader.topology.link_profile import LinkProfile

SLOW_BYTES_PER_S = 50e6 / 8
"""An all-reduce of 25 M parameters takes 16 s on such a link."""

SHARE = 1 / 8
"""A link with less than this share of the best one holds up all machines."""

GIGABIT_BYTES_PER_S = 1e9 / 8
"""Faster links are not the standard for others: nobody should buy a new switch because
two of the machines share a Thunderbolt cable."""

FAR_S = 0.025
"""One way. Wired networks have 0.2 ms and Wi-Fi 2 to 10."""


def slower_direction(profile: LinkProfile) -> float:
    """Return the bytes per second of the slower direction."""
    return min(profile.out_bytes_per_s, profile.in_bytes_per_s)


def is_suspect(profile: LinkProfile) -> bool:
    """Return whether a measurement is bad enough to be repeated."""
    is_slow = slower_direction(profile) < GIGABIT_BYTES_PER_S * SHARE
    return is_slow or profile.latency_s > FAR_S


def slow_links(facts: Facts) -> Iterator[Finding]:
    """Find slow links: ours as measured now, others' as their agents report them."""
    mine = {c: c.link.profile for c in facts.members if c.link and c.link.profile}
    best = max(map(slower_direction, mine.values()), default=0.0)
    limit = max(SLOW_BYTES_PER_S, min(best, GIGABIT_BYTES_PER_S) * SHARE)
    for candidate in facts.members:
        if candidate.link is None or candidate.link.needs_small_segments:
            continue  # an MTU problem, which has a finding of its own
        if candidate.link.outcome is LinkOutcome.STALLED:
            yield _stalled(facts, candidate)
        elif candidate.link.outcome is LinkOutcome.FAILED:
            yield _failed(facts, candidate, candidate.link.text)
        elif candidate in mine:
            between = f"{facts.name} and {candidate.title}"
            yield from _check(between, mine[candidate], limit)
    for between, profile in _links_of_others(facts):
        yield from _check(between, profile, SLOW_BYTES_PER_S)


def _check(between: str, profile: LinkProfile, limit: float) -> Iterator[Finding]:
    out, into = profile.out_bytes_per_s, profile.in_bytes_per_s
    if min(out, into) < limit:
        text = (
            f"Between {between} the link carries {_rate(out)} there and {_rate(into)} "
            f"back; below {_rate(limit)} it slows down the whole ring."
        )
        yield Finding(Code.SLOW_LINK, text, _MEND, Severity.WARNING)
    elif profile.latency_s > FAR_S:
        text = (
            f"Between {between} a packet takes {profile.latency_s * 1e3:.0f} ms one "
            "way; on a LAN it takes less than 10."
        )
        yield Finding(Code.SLOW_LINK, text, _FAR_MEND, Severity.WARNING)


_MEND = (
    "Use a cable instead of Wi-Fi, or the 5 GHz band; try another cable and another "
    "port of the switch (a bad cable falls back to 10 or 100 Mbit/s); end large "
    "downloads. Or train with --compress, which sends fewer bytes."
)
_FAR_MEND = (
    "If the machines are in different places, nothing is broken: train in rounds of "
    "many local steps (docs/low-communication.md), which wait for each other once per "
    "round instead of once per step. In one home, use a cable instead of Wi-Fi, or the "
    "5 GHz band, and end large downloads."
)


def _stalled(facts: Facts, candidate: Candidate) -> Finding:
    text = (
        f"Between {facts.name} and {candidate.title} the handshake works, but the few "
        "packets that measure the link did not come through in time."
    )
    return Finding(Code.SLOW_LINK, text, _MEND, Severity.WARNING)


def _failed(facts: Facts, candidate: Candidate, why: str) -> Finding:
    text = (
        f"{candidate.title} answers, but the link between it and {facts.name} could "
        f"not be measured. What failed: {why}."
    )
    mend = (
        "Run `ringleader doctor` again, and over there, too. If it stays: tensors "
        "travel over such connections and would fail as well; the log of the agent "
        "over there tells what it saw."
    )
    return Finding(Code.LINK_FAILED, text, mend, Severity.WARNING)


def _links_of_others(facts: Facts) -> Iterator[tuple[str, LinkProfile]]:
    """Yield links between two other machines, each once, as any agent reports them."""
    here = {d.node for c in facts.candidates if c.is_here for d in c.dials}
    ours = {*facts.own, *here}
    theirs = [d.snapshot for c in facts.members for d in c.reached if d.snapshot]
    done: set[frozenset[str]] = set()
    for snapshot in [*theirs, *facts.agents]:
        names = {row.node: row.name for row in snapshot.nodes if row.in_view}
        for row in snapshot.nodes:
            for to, profile in row.links.items():
                pair = frozenset((row.node, to))
                if pair & ours or pair in done or not pair <= names.keys():
                    continue
                done.add(pair)
                yield f"{names[row.node]} and {names[to]}", profile


def _rate(bytes_per_s: float) -> str:
    bits = bytes_per_s * 8
    return f"{bits / 1e9:.1f} Gbit/s" if bits >= 1e9 else f"{bits / 1e6:.1f} Mbit/s"
