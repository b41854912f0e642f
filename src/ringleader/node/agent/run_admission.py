"""Admission to a job that survives lost machines. Pure.

Its first round forms like any other. Once all machines have entered it, it never ends
for a change of the membership: a machine that comes later joins the round as it is,
whatever number of machines it was to begin with.
"""

from __future__ import annotations

from ringleader.ids import NodeId
from ringleader.node.agent.applicants import find_applicants
from ringleader.node.agent.rank_assignment import (
    Refused,
    Round,
    Waiting,
    assign_ranks,
    find_refusal,
)
from ringleader.node.agent.view_state import ViewState


def admit(job: str, view: ViewState, mine: NodeId) -> Round | Refused | Waiting:
    """Return what ``view`` means for the waiting request of ``mine`` for ``job``."""
    applicants = find_applicants(job, view)
    running = applicants.running
    established = [
        node
        for node in applicants.seniority
        if node in running
        and running[node].is_established
        and not _has_finished(job, node, view)
    ]
    if not applicants.waiting[mine].survives or not established:
        return assign_ranks(job, view, mine)
    refused = find_refusal(applicants, mine, view)
    if refused is not None:
        return refused
    round_id = running[established[0]].round
    return Round(round_id, (mine,), is_joined=True)


def _has_finished(job: str, node: NodeId, view: ViewState) -> bool:
    state = view.states[node]
    request = state.request_for(job)
    return any(
        request is not None and end.job == job and end.round == request.round
        for end in state.ended_jobs
    )
