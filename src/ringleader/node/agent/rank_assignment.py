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

from ringleader.ids import NodeId
from ringleader.node.agent import fingerprint_check
from ringleader.node.agent.fingerprint_check import Machine
from ringleader.node.agent.view_state import ViewState
from ringleader.node.peering.link_plan import is_measured
from ringleader.node.protocol.node_state import JobFingerprint, JobRequest

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


@dataclass(frozen=True, slots=True)
class _Applicants:
    """The nodes of one job in one view."""

    waiting: dict[NodeId, JobRequest]
    running: dict[NodeId, JobRequest]
    reference: NodeId
    """The oldest node that trains, or else that waits; the others must share its
    fingerprint."""
    fingerprint: JobFingerprint

    @property
    def matching(self) -> list[NodeId]:
        """Waiting nodes with the reference fingerprint, in ring order."""
        return [
            node
            for node, request in self.waiting.items()
            if not fingerprint_check.differences(self.fingerprint, request.fingerprint)
        ]

    def limits(self) -> tuple[int, int]:
        """Return the number of nodes needed, and the largest number allowed."""
        requests = [self.waiting[node] for node in self.matching]
        need = max((r.min_nodes for r in requests), default=1)
        return need, max(need, min((r.max_nodes for r in requests), default=1))


def _applicants(job: str, view: ViewState) -> _Applicants:
    requests = view.requests_for(job)
    waiting = {node: request for node, request in requests.items() if not request.round}
    running = {node: request for node, request in requests.items() if request.round}
    candidates = running or waiting
    reference = next(node for node in view.by_seniority if node in candidates)
    return _Applicants(waiting, running, reference, requests[reference].fingerprint)


def assign_ranks(job: str, view: ViewState, mine: NodeId) -> Round | Refused | Waiting:
    """Return what ``view`` means for the waiting request of ``mine`` for ``job``."""
    applicants = _applicants(job, view)
    names = fingerprint_check.differences(
        applicants.fingerprint, applicants.waiting[mine].fingerprint
    )
    if names:
        return Refused(_explain(names, applicants, mine, view))
    matching, (need, most) = applicants.matching, applicants.limits()
    if applicants.running or len(matching) < need:
        missing = max(0, need - len(matching))
        return Waiting(tuple(matching), tuple(applicants.running), missing)
    chosen = sorted(matching, key=view.by_seniority.index)[:most]
    is_complete = len(matching) >= most and is_measured(view.states, chosen)
    if not is_complete and not view.is_ready(job):
        return Waiting(tuple(matching), (), 0)
    ring = tuple(node for node in matching if node in chosen)
    return Round(round_id(view.view_id, job), ring)


def round_id(view_id: str, job: str) -> str:
    """Return a short id; the digest makes it unique among views and jobs."""
    digest = hashlib.sha256(f"{view_id}/{job}".encode()).hexdigest()[:12]
    return f"{view_id.partition('@')[0]}-{digest}"


def is_stale(
    job: str, current: Round, view: ViewState, done: Collection[NodeId] = ()
) -> bool:
    """Return whether ``current`` must be left for the next round.

    True if one of its nodes is gone or waits again, if a newcomer would be part of the
    next round, and if an older node is in another round of the job: after a split has
    healed, only one round remains. Nodes in ``done`` have finished and are not missed.
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
    oldest = min([*ours, *others], key=view.by_seniority.index, default=None)
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
    applicants = _applicants(job, view)
    matching, (need, most) = applicants.matching, applicants.limits()
    if applicants.running or len(matching) < need:
        return None
    if len(matching) >= most:
        return MEASURE_S
    if any(applicants.waiting[node].is_retry for node in matching):
        return RETRY_WAIT_S  # the rest of a round goes on at once
    return max(applicants.waiting[node].wait_s for node in matching)


def _explain(
    names: list[str], applicants: _Applicants, mine: NodeId, view: ViewState
) -> str:
    reference = applicants.reference
    return fingerprint_check.explain(
        names,
        Machine(mine, view.states[mine], applicants.waiting[mine].fingerprint),
        Machine(reference, view.states[reference], applicants.fingerprint),
    )
