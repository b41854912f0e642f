"""``round_status``: what has become of a round and of its other nodes. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Set

from ringleader.ids import NodeId
from ringleader.node.agent import rank_assignment
from ringleader.node.agent.job import Job
from ringleader.node.agent.rank_assignment import Round
from ringleader.node.agent.view_state import ViewState
from ringleader.node.protocol.local_requests import RoundStatus


def round_status(
    name: str, job: Job, view: ViewState, mine: NodeId, names: Mapping[NodeId, str]
) -> RoundStatus:
    """Return whether the round of a job goes on, and which nodes are at work or gone.

    A node that is not in the view, or whose request names another round, has left this
    one; it is gone unless it has finished. ``names`` are of all nodes ever seen.
    """
    current = job.round
    if current is None:
        return RoundStatus(True, "this machine is in no round")
    nodes = job.participants
    others = [rank for rank, node in enumerate(nodes) if node != mine]
    first = job.first_view
    if first is not None and view.view_id == first.view_id:  # all nodes still wait
        return RoundStatus(False, unfinished=others)
    requests = view.requests_for(name)
    here = {n for n, request in requests.items() if request.round == current.id}
    pending = [rank for rank in others if nodes[rank] not in job.done]
    at_work = [r for r in pending if nodes[r] in here and nodes[r] not in job.failed]
    gone = [rank for rank in pending if rank not in at_work]
    is_stale = not job.is_established and rank_assignment.is_stale(
        name, current, view, job.done
    )
    # The view in force may be older than our own end.
    ends = {**job.lineages, mine: job.lineage}
    return RoundStatus(
        is_stale,
        _reason(job, current, view.states.keys() & requests.keys()) if is_stale else "",
        unfinished=at_work,
        gone=gone,
        finished=[rank for rank in others if nodes[rank] in job.done],
        names=[names.get(node, node) for node in nodes],
        failures={
            r: job.failures[nodes[r]] for r in others if nodes[r] in job.failures
        },
        unreachable=[r for r in gone if nodes[r] not in view.states],
        can_return=job.can_return,
        histories={r: ends[node] for r, node in enumerate(nodes) if ends.get(node)},
    )


def _reason(job: Job, current: Round, present: Set[NodeId]) -> str:
    """``present``: nodes that still take part in the job; a machine may be up without,
    if its agent outlives the process that did."""
    gone = {node for node in current.nodes if node not in present}
    lost = len(gone - job.done - job.failed)
    words = [f"{lost} lost"] * bool(lost)
    words += [f"{len(job.failed)} failed"] * bool(job.failed)
    return " and ".join(words) or "other machines wait"
