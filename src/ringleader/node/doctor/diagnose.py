"""From facts to findings: what is wrong, with whom, and how to mend it. Pure."""

from __future__ import annotations

from ringleader.node.doctor.facts import Facts
from ringleader.node.doctor.finding import Finding, Severity
from ringleader.node.doctor.judge_machine import machine
from ringleader.node.doctor.judge_multicast import multicast
from ringleader.node.doctor.judge_nodes import clocks, clones, two_subnets
from ringleader.node.doctor.judge_pace import slow_links
from ringleader.node.doctor.judge_reach import reach, unreadable, wrong_secrets

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
