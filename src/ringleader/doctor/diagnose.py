"""From facts to findings: what is wrong, with whom, and how to mend it. Pure."""

from __future__ import annotations

from ringleader.doctor.facts import Facts
from ringleader.doctor.finding import Finding, Severity
from ringleader.doctor.rules.link_speed import slow_links
from ringleader.doctor.rules.machine import machine
from ringleader.doctor.rules.multicast import multicast
from ringleader.doctor.rules.nodes import clocks, clones, two_subnets
from ringleader.doctor.rules.reachability import reach, unreadable, wrong_secrets

RULES = (
    machine,
    multicast,
    wrong_secrets,
    reach,
    unreadable,
    clones,
    two_subnets,
    slow_links,
    clocks,
)
"""Each looks at all the facts and yields what it finds."""


def diagnose(facts: Facts) -> list[Finding]:
    """Everything that is wrong: what hinders first, then what only slows down."""
    found = [finding for rule in RULES for finding in rule(facts)]
    return sorted(found, key=lambda finding: finding.severity is Severity.WARNING)
