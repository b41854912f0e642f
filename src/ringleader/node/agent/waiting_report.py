"""Tells a user who waits for a round why, again and again, with what else is known."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

from ringleader.deadline import Deadline
from ringleader.ids import NodeId
from ringleader.node.agent.job import Job
from ringleader.node.agent.view_state import ViewState

FIRST_S = 10.0
"""Machines that are started one after the other meet within that time."""
EVERY_S = 30.0
ADVICE = "to find out why: ringleader doctor"


async def report_waiting(
    job: Job,
    deadline: Deadline,
    situation: Callable[[], tuple[ViewState | None, Mapping[NodeId, str], list[str]]],
) -> None:
    """Report until cancelled, or until the job is in a round.

    ``situation`` returns the view, the names of all nodes that were ever seen, and the
    problems the agent knows of.
    """
    told: set[str] = set()
    pause_s = FIRST_S
    while True:
        await asyncio.sleep(pause_s)
        pause_s = EVERY_S
        if job.round is not None:
            return
        waits = job.last_progress or "for the first view of the cluster"
        job.on_progress(f"still waiting, {deadline.left_s():.0f} s left: {waits}")
        view, names, troubles = situation()
        for line in [*who_is_missing(job, view, names), *troubles, ADVICE]:
            if line not in told:
                told.add(line)
                job.on_progress(line)


def who_is_missing(
    job: Job, view: ViewState | None, names: Mapping[NodeId, str]
) -> list[str]:
    """Return a sentence for each machine that could take part and does not."""
    if view is None:
        return []
    before = job.last_round.nodes if job.last_round else ()
    lines = [
        f"{names.get(node, 'a machine')} was in the last round and is gone"
        for node in before
        if node not in view.states
    ]
    taking_part = view.requests_for(job.request.job)
    for node, state in view.states.items():
        if node not in taking_part:
            jobs = ", ".join(sorted(request.job for request in state.job_requests))
            where = f"it is in job {jobs}" if jobs else "it has entered no job yet"
            lines.append(f"{view.names()[node]} is here, but {where}")
    if len(view.states) == 1:
        lines.append("no other node of this cluster is in sight")
    return lines
