"""Rank assignment: which nodes train together, and with which ranks.

A pure function of the view, so that all nodes come to the same result without further
agreement. A round is one formation of a job: its nodes in rank order. It ends when one
of them leaves or asks for the next round; the others notice that in the next view, stop
their workers and ask again.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection
from dataclasses import dataclass

import msgspec

from ringleader.ids import NodeId, short
from ringleader.node.agent import (
    coordinator_order,
    fingerprint_check,
    job_seniority,
)
from ringleader.node.agent.applicants import Applicants, find_applicants
from ringleader.node.agent.fingerprint_check import Machine
from ringleader.node.agent.view_state import ViewState
from ringleader.node.peering.link_plan import is_measured

RETRY_WAIT_S = 0.3
"""How long the leader waits for more nodes when a round is formed anew."""
MEASURE_S = 4.0
"""How long a job waits for links that are not measured yet. The measurements decide the
order of the ranks; a link that cannot be measured must not prevent training."""


@dataclass(frozen=True, slots=True)
class Round:
    """The nodes that train together; a node's position is its rank among nodes."""

    id: str
    nodes: tuple[NodeId, ...]
    is_joined: bool = False
    """This node joined it while the others trained; it is alone in ``nodes``."""


@dataclass(frozen=True, slots=True)
class Refused:
    """A node may not take part in a job."""

    reason: str


@dataclass(frozen=True, slots=True)
class Waiting:
    """No round can begin yet."""

    nodes: tuple[NodeId, ...]
    """Nodes that wait."""
    running: tuple[NodeId, ...]
    """Nodes that are still in an older round."""
    missing: int
    """Number of nodes that must come before training can start at all."""
    rank0: str = ""
    """The machine that the user wants as rank 0, if it is not here."""
    refused: tuple[tuple[NodeId, str], ...] = ()
    """Nodes that may not take part, and the properties in which they differ."""

    def describe(self, view: ViewState) -> str:
        """Return a sentence for a user who waits."""
        others = [
            f"; {view.names()[node]} is refused (different {what})"
            for node, what in self.refused
        ]
        return self._reason(view) + "".join(others)

    def _reason(self, view: ViewState) -> str:
        names = ", ".join(view.names()[node] for node in self.nodes)
        if self.running:
            busy = ", ".join(view.names()[node] for node in self.running)
            return f"waiting for {busy} to finish or to restart"
        here = f"{len(self.nodes)} here ({names})"
        if self.missing:
            more = f"{self.missing} more machine" + "s" * (self.missing > 1)
            return f"{here}; waiting for {more}"
        if self.rank0:
            return f"{here}; waiting a moment for {self.rank0}, which --rank0 names"
        return f"{here}; waiting a moment for more"


def assign_ranks(job: str, view: ViewState, mine: NodeId) -> Round | Refused | Waiting:
    """Return what ``view`` means for the waiting request of ``mine`` for ``job``."""
    applicants = find_applicants(job, view)
    refused = find_refusal(applicants, mine, view)
    if refused is not None:
        return refused
    matching, (need, most) = applicants.matching, applicants.limits()
    if applicants.running or len(matching) < need:
        missing = max(0, need - len(matching))
        return Waiting(
            tuple(matching),
            tuple(applicants.running),
            missing,
            refused=applicants.refused(),
        )
    if applicants.lacks_rank0(view):
        if view.is_ready(job):
            return Refused(_explain_missing_rank0(applicants, view))
        return Waiting(tuple(matching), (), 0, applicants.rank0)
    oldest_first, named = applicants.oldest_first(), applicants.named(view)
    first = named or oldest_first[0]
    chosen = [first, *(node for node in oldest_first if node != first)][:most]
    is_complete = len(matching) >= most and is_measured(view.states, chosen)
    if not is_complete and not view.is_ready(job):
        return Waiting(tuple(matching), (), 0)
    ring = [node for node in matching if node in chosen]
    ring = coordinator_order.order_ring(ring, view)
    ranks = job_seniority.start_ring_at(first, ring, view)
    return Round(round_id(view.view_id, job), ranks)


def find_refusal(
    applicants: Applicants, mine: NodeId, view: ViewState
) -> Refused | None:
    """Return why ``mine`` may not take part with the others, if it may not."""
    names = fingerprint_check.differences(
        applicants.fingerprint, applicants.waiting[mine].fingerprint
    )
    if names:
        return Refused(_explain(names, applicants, mine, view))
    if applicants.waiting[mine].rank0 not in ("", applicants.rank0):
        return Refused(_explain_rank0(applicants, mine, view))
    return None


def round_id(view_id: str, job: str) -> str:
    """Return a short id; the digest makes it unique among views and jobs."""
    digest = hashlib.sha256(f"{view_id}/{job}".encode()).hexdigest()[:12]
    return f"{view_id.partition('@')[0]}-{digest}"


def is_stale(
    job: str, current: Round, view: ViewState, done: Collection[NodeId] = ()
) -> bool:
    """Return whether ``current`` must be left for the next round.

    True if one of its nodes is gone or waits again, if a newcomer would be part of the
    next round, and if a node before ours by seniority is in another round of the job:
    after a split has healed, only one round remains. Nodes in ``done`` have finished
    and are not missed.
    """
    requests = view.requests_for(job)
    ours = [
        node
        for node in current.nodes
        if node in requests and requests[node].round == current.id
    ]
    if any(node not in ours and node not in done for node in current.nodes):
        return True
    others = [n for n, r in requests.items() if r.round and r.round != current.id]
    seniority = job_seniority.order_by_seniority(view, requests)
    oldest = next((n for n in seniority if n in ours or n in others), None)
    if others and oldest in others:
        return True
    return not others and not done and _would_grow(job, current, view)


def _would_grow(job: str, current: Round, view: ViewState) -> bool:
    """Return whether the next round would include a node that this one does not."""
    replace = msgspec.structs.replace
    states = {
        node: replace(
            state, job_requests=[replace(each, round="") for each in state.job_requests]
        )
        for node, state in view.states.items()
    }
    leader = view.by_seniority[0]
    states[leader] = replace(states[leader], ready_jobs=[job])
    if_all_waited = ViewState(view.view_id, view.by_seniority, states)
    following = assign_ranks(job, if_all_waited, current.nodes[0])
    return isinstance(following, Round) and not {*following.nodes} <= {*current.nodes}


def patience_s(job: str, view: ViewState) -> float | None:
    """Return how long the leader lets ``job`` wait for more machines or measurements.

    None if the job must not start: too few nodes are here, or one of them is still in
    an older round.
    """
    applicants = find_applicants(job, view)
    matching, (need, most) = applicants.matching, applicants.limits()
    if applicants.running or len(matching) < need:
        return None
    if applicants.lacks_rank0(view):
        return max(applicants.waiting[node].wait_s for node in matching)
    if len(matching) >= most:
        return MEASURE_S
    if any(applicants.waiting[node].is_retry for node in matching):
        return RETRY_WAIT_S  # the rest of a round goes on at once
    return max(applicants.waiting[node].wait_s for node in matching)


def _explain(
    names: list[str], applicants: Applicants, mine: NodeId, view: ViewState
) -> str:
    reference = applicants.reference
    return fingerprint_check.explain(
        names,
        Machine(mine, view.states[mine], applicants.waiting[mine].fingerprint),
        Machine(reference, view.states[reference], applicants.fingerprint),
    )


def _explain_rank0(applicants: Applicants, mine: NodeId, view: ViewState) -> str:
    wanted, here = applicants.rank0, applicants.waiting[mine].rank0
    requests = {**applicants.running, **applicants.waiting}
    if not wanted:
        return f"the others train without --rank0; leave out --rank0 {here} here"
    there = next(n for n in applicants.seniority if requests[n].rank0 == wanted)
    who = job_seniority.describe([there], view)
    return f"rank 0 is to be {here} here and {wanted} on {who}; name one machine"


def _explain_missing_rank0(applicants: Applicants, view: ViewState) -> str:
    name, here = applicants.rank0, applicants.oldest_first()
    found = job_seniority.nodes_named(name, here, view)
    if found:
        listed = job_seniority.describe(found, view)
        return (
            f"--rank0 {name} may be {listed}; give the id instead: --rank0 "
            f"{short(found[0])}"
        )
    listed = job_seniority.describe(here, view)
    return f"no machine {name} came, which --rank0 names; here are {listed}"
