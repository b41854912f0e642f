"""Rule: do the agents of this machine reach their coordinator? Pure."""

from __future__ import annotations

from collections.abc import Iterator

from ringleader.doctor.facts import Facts
from ringleader.doctor.finding import Code, Finding

_MEND = (
    "Look whether 'ringleader coordinator' runs on its machine, with this address in "
    "--listen, and whether the firewall there lets the port through. When it is back, "
    "all agents register again by themselves; running jobs do not need it."
)


def coordinators(facts: Facts) -> Iterator[Finding]:
    """Find coordinators that do not answer, or do not let this machine in."""
    troubles = [s.coordinator_trouble for s in facts.agents if s.coordinator_trouble]
    for trouble in dict.fromkeys(troubles):
        text = f"{trouble}. So {facts.name} finds no other machines through it."
        yield Finding(Code.COORDINATOR_LOST, text[0].upper() + text[1:], _MEND)
