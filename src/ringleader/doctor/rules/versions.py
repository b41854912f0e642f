"""Rule: which nodes run another, incompatible version? Pure."""

from __future__ import annotations

from collections.abc import Iterator

from ringleader.discovery.record import RecordRefusal
from ringleader.doctor.facts import Candidate, DialOutcome, Facts, Source
from ringleader.doctor.finding import Code, Finding

_UPGRADE = "Upgrade the older one: pip install --upgrade ringleader."


def versions(facts: Facts) -> Iterator[Finding]:
    """Find nodes that were reached and speak another protocol version."""
    for candidate in facts.candidates:
        is_ours = candidate.sources != {Source.FOREIGN} and not candidate.is_here
        if is_ours and candidate.outcome is DialOutcome.OTHER_VERSION:
            yield _other_version(facts, candidate)


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


def unreadable_announcements(facts: Facts) -> Iterator[Finding]:
    """Find announcements of a version that we cannot read.

    They may belong to any cluster, so they are reported only if no other node is known.
    """
    sources = {
        seen.source
        for report in facts.multicast
        for seen in report.seen.values()
        if seen.refusal is RecordRefusal.OTHER_VERSION
    }
    if sources and all(c.is_here for c in facts.candidates):
        text = (
            f"A node at {', '.join(sorted(sources))} announces itself in a way that "
            f"ringleader {facts.version} on {facts.name} does not understand."
        )
        yield Finding(Code.OTHER_VERSION, text, _UPGRADE)
