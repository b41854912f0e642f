"""``diagnose``: derives findings from facts. Pure."""

from __future__ import annotations

from ringleader.doctor.facts import Facts
from ringleader.doctor.finding import Finding, Severity
from ringleader.doctor.rules.absent_nodes import lonely_jobs, lost_nodes
from ringleader.doctor.rules.clocks import clocks
from ringleader.doctor.rules.cloned_keys import cloned_keys
from ringleader.doctor.rules.coordinators import coordinators
from ringleader.doctor.rules.link_speed import slow_links
from ringleader.doctor.rules.machine import machine
from ringleader.doctor.rules.multicast import multicast
from ringleader.doctor.rules.reachability import reachability
from ringleader.doctor.rules.secrets import wrong_secrets
from ringleader.doctor.rules.subnets import subnets
from ringleader.doctor.rules.versions import unreadable_announcements, versions

RULES = (
    machine,
    multicast,
    coordinators,
    wrong_secrets,
    versions,
    reachability,
    unreadable_announcements,
    cloned_keys,
    subnets,
    slow_links,
    clocks,
    lost_nodes,
    lonely_jobs,
)
"""Each takes all the facts and yields findings."""


def diagnose(facts: Facts) -> list[Finding]:
    """Return all findings, errors before warnings."""
    found = [finding for rule in RULES for finding in rule(facts)]
    return sorted(found, key=lambda finding: finding.severity is Severity.WARNING)
