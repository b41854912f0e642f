"""``compare_environment``: what a machine lacks for a job, as rows of a table. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from ringleader.project.environment import (
    UNVERSIONED,
    EnvironmentFacts,
    EnvironmentNeeds,
    NeededDistribution,
)

MISSING = "missing"


@dataclass(frozen=True, slots=True)
class Difference:
    """One thing that differs on a machine."""

    what: str
    """``Python``, ``ringleader protocol``, or the name of a distribution."""
    needed: str
    found: str
    refuses: bool
    """Whether the job must not start; otherwise the user is only told."""
    remedy: str
    """What to type on the machine."""


def compare_environment(
    needs: EnvironmentNeeds, facts: EnvironmentFacts
) -> list[Difference]:
    """Return what differs between what a job needs and what a machine has.

    A missing distribution, or one of another major or minor version, refuses the job.
    Another patch release does not, nor does anything that the project goes on without.
    """
    found: list[Difference] = []
    if series(facts.python) != series(needs.python):
        remedy = f"install Python {series(needs.python)} and ringleader with it"
        found.append(Difference("Python", needs.python, facts.python, True, remedy))
    if facts.ringleader != needs.ringleader:
        remedy = "pip install --upgrade ringleader (on both machines)"
        versions = (needs.ringleader, facts.ringleader)
        found.append(Difference("ringleader protocol", *versions, True, remedy))
    for each in needs.distributions:
        here = facts.versions.get(each.name, "")
        if here != each.version or not here:
            found.append(_difference(each, here))
    return found


def _difference(needed: NeededDistribution, here: str) -> Difference:
    is_other = series(here) != series(needed.version) if needed.version else not here
    remedy = f'pip install "{needed.name}{_pin(needed.version)}"'
    if needed.version == UNVERSIONED:
        remedy = f"copy the folder of {needed.name} there, and set PYTHONPATH"
    return Difference(
        needed.name,
        needed.version or "any",
        here or MISSING,
        is_other and not needed.is_optional,
        remedy,
    )


def _pin(version: str) -> str:
    return f"=={version.partition('+')[0]}" if version else ""


def series(version: str) -> str:
    """Return the major and minor number of a version: ``2.13`` of ``2.13.1+cpu``."""
    return ".".join(version.partition("+")[0].split(".")[:2])


def refuses(differences: Iterable[Difference]) -> bool:
    """Return whether a job must not start with these differences."""
    return any(each.refuses for each in differences)


def difference_table(machines: Mapping[str, Sequence[Difference]]) -> str:
    """Return the differences of all machines as text, and what to type on each."""
    rows = [("machine", "what", "needed", "found", "what to type there")]
    rows += [
        (name, d.what, d.needed, d.found, d.remedy if d.refuses else "(goes on)")
        for name, differences in machines.items()
        for d in differences
    ]
    widths = [max(len(row[column]) for row in rows) for column in range(5)]
    lines = (
        "  ".join(f"{text:<{width}}" for text, width in zip(row, widths, strict=True))
        for row in rows
    )
    return "\n".join(line.rstrip() for line in lines)
