"""Which links are slow: below 50 Mbit/s, or far below the best one, or far away. Pure.

A cable that fell back to 100 Mbit/s beside others with 1 Gbit/s is slow, a Wi-Fi of
200 Mbit/s beside them is not, and neither is 1 Gbit/s beside Thunderbolt.
"""

from __future__ import annotations

from collections.abc import Iterator

from ringleader.doctor.facts import Candidate, Facts, Pace
from ringleader.doctor.finding import Code, Finding, Severity
from ringleader.topology.link_profile import LinkProfile

SLOW_BYTES_PER_S = 50e6 / 8
"""An all-reduce of 25 M parameters takes 16 s on such a link."""

SHARE = 1 / 8
"""Of the best link: what less means that one machine holds up all others."""

GIGABIT_BYTES_PER_S = 1e9 / 8
"""Faster links are not what others are compared with: nobody should buy a new switch
because two of the machines share a Thunderbolt cable."""

FAR_S = 0.025
"""One way. Wired networks have 0.2 ms and Wi-Fi 2 to 10."""


def slower_way(profile: LinkProfile) -> float:
    """Bytes per second of the slower direction."""
    return min(profile.out_bytes_per_s, profile.in_bytes_per_s)


def is_suspect(profile: LinkProfile) -> bool:
    """Whether the figures are worth a second look."""
    low = slower_way(profile) < GIGABIT_BYTES_PER_S * SHARE
    return low or profile.latency_s > FAR_S


def slow_links(facts: Facts) -> Iterator[Finding]:
    """What is slow: our own links as measured now, others' as their agents say."""
    mine = {c: c.link.profile for c in facts.members if c.link and c.link.profile}
    best = max(map(slower_way, mine.values()), default=0.0)
    limit = max(SLOW_BYTES_PER_S, min(best, GIGABIT_BYTES_PER_S) * SHARE)
    for candidate in facts.members:
        if candidate.link is None or candidate.link.needs_small:
            continue  # MTU trouble, which has a finding of its own
        if candidate.link.pace is Pace.STALLED:
            yield _hardly_any(facts, candidate)
        elif candidate in mine:
            yield from _judge(
                f"{facts.name} and {candidate.title}", mine[candidate], limit
            )
    for between, profile in _links_of_others(facts):
        yield from _judge(between, profile, SLOW_BYTES_PER_S)


def _judge(between: str, profile: LinkProfile, limit: float) -> Iterator[Finding]:
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
        yield Finding(Code.SLOW_LINK, text, _MEND, Severity.WARNING)


_MEND = (
    "Use a cable instead of Wi-Fi, or the 5 GHz band; try another cable and another "
    "port of the switch (a bad cable falls back to 10 or 100 Mbit/s); end large "
    "downloads. Or train with a compression that suits slow links."
)


def _hardly_any(facts: Facts, candidate: Candidate) -> Finding:
    text = (
        f"Between {facts.name} and {candidate.title} greetings come through, and not "
        "even 16 KiB came through in two seconds."
    )
    return Finding(Code.SLOW_LINK, text, _MEND, Severity.WARNING)


def _links_of_others(facts: Facts) -> Iterator[tuple[str, LinkProfile]]:
    """Links between two other machines, each once, as any agent told us."""
    mine = {v.node for c in facts.candidates if c.is_here for v in c.visits}
    seen = {*facts.own, *mine}
    shots = [v.snapshot for c in facts.members for v in c.reached if v.snapshot]
    done: set[frozenset[str]] = set()
    for shot in [*shots, *facts.agents]:
        names = {row.node: row.name for row in shot.nodes if row.in_view}
        for row in shot.nodes:
            for to, profile in row.links.items():
                pair = frozenset((row.node, to))
                if pair & seen or pair in done or not pair <= names.keys():
                    continue
                done.add(pair)
                yield f"{names[row.node]} and {names[to]}", profile


def _rate(bytes_per_s: float) -> str:
    bits = bytes_per_s * 8
    return f"{bits / 1e9:.1f} Gbit/s" if bits >= 1e9 else f"{bits / 1e6:.1f} Mbit/s"
