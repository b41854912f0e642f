"""Rule: do the wall clocks agree? Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from ringleader.doctor.facts import Candidate, Facts
from ringleader.doctor.finding import Code, Finding, Severity

CLOCK_S = 2.0
"""Smaller differences do not matter when two logs are compared."""


def clocks(facts: Facts) -> Iterator[Finding]:
    """Find machines whose wall clocks differ by more than two seconds."""
    ahead = {c: s for c in facts.members if (s := _ahead_s(c)) is not None}
    off = {c: s for c, s in ahead.items() if abs(s) > CLOCK_S}
    if len(off) > 1 and len(off) == len(ahead) and _spread_s(off.values()) < CLOCK_S:
        others = ", ".join(c.title for c in off)
        some = next(iter(off.values()))
        text = f"The clock of {facts.name} is {_by(-some)} those of {others}."
        yield _skewed(text, facts.name)
        return
    for candidate, seconds in off.items():
        text = f"The clock of {candidate.title} is {_by(seconds)} that of {facts.name}."
        yield _skewed(text, f"{candidate.title}, or {facts.name} if that one is wrong")


def _ahead_s(candidate: Candidate) -> float | None:
    found = [d.clock_ahead_s for d in candidate.reached if d.clock_ahead_s is not None]
    return min(found, key=abs, default=None)


def _spread_s(values: Iterable[float]) -> float:
    found = list(values)
    return max(found) - min(found)


def _by(seconds: float) -> str:
    return f"{_format(abs(seconds))} {'ahead of' if seconds > 0 else 'behind'}"


def _format(seconds: float) -> str:
    for size, unit in ((86400, "days"), (3600, "hours"), (60, "minutes")):
        if seconds >= 2 * size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.1f} seconds"


def _skewed(text: str, where: str) -> Finding:
    return Finding(
        Code.CLOCK_SKEW,
        f"{text} Training is not affected, but times in logs and files do not match.",
        f"Let {where} set its clock from the network: 'timedatectl set-ntp true' on "
        "Linux, 'Set time automatically' on a Mac and on Windows.",
        Severity.WARNING,
    )
