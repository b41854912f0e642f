"""Applicants: the nodes that want to take part in a job, as one view shows them."""

from __future__ import annotations

from dataclasses import dataclass

from ringleader.ids import NodeId
from ringleader.node.agent import job_seniority
from ringleader.node.agent.fingerprint_check import differences
from ringleader.node.agent.view_state import ViewState
from ringleader.node.protocol.node_state import JobFingerprint, JobRequest


@dataclass(frozen=True, slots=True)
class Applicants:
    """The nodes of one job in one view."""

    waiting: dict[NodeId, JobRequest]
    running: dict[NodeId, JobRequest]
    reference: NodeId
    """The oldest node that trains, or else that waits; the others must share its
    fingerprint."""
    fingerprint: JobFingerprint
    seniority: list[NodeId]
    """All of them, the one that should be rank 0 first."""
    rank0: str
    """The machine that the user wants as rank 0; empty: the oldest."""
    trained: frozenset[NodeId]
    """The nodes that have trained."""

    @property
    def matching(self) -> list[NodeId]:
        """Waiting nodes with the reference fingerprint, in ring order."""
        return [
            node
            for node, request in self.waiting.items()
            if not differences(self.fingerprint, request.fingerprint)
            and request.rank0 in ("", self.rank0)
        ]

    def refused(self) -> tuple[tuple[NodeId, str], ...]:
        """Return the waiting nodes with another fingerprint, and what differs."""
        found = {
            node: differences(self.fingerprint, request.fingerprint)
            for node, request in self.waiting.items()
        }
        return tuple((n, ", ".join(names)) for n, names in found.items() if names)

    def limits(self) -> tuple[int, int]:
        """Return the number of nodes needed, and the largest number allowed."""
        requests = [self.waiting[node] for node in self.matching]
        need = max((r.min_nodes for r in requests), default=1)
        return need, max(need, min((r.max_nodes for r in requests), default=1))

    def oldest_first(self) -> list[NodeId]:
        """Return the matching nodes by seniority."""
        matching = set(self.matching)
        return [node for node in self.seniority if node in matching]

    def named(self, view: ViewState) -> NodeId | None:
        """Return the node that the user wants as rank 0, if it is known and here."""
        found = job_seniority.nodes_named(self.rank0, self.oldest_first(), view)
        is_clear = len(found) == 1 or bool(found and found[0] in self.trained)
        return found[0] if is_clear else None

    def lacks_rank0(self, view: ViewState) -> bool:
        """Return whether the machine named as rank 0 must come, or be told apart.

        A job that has trained goes on without it.
        """
        if not self.rank0 or not self.trained.isdisjoint(self.matching):
            return False
        return self.named(view) is None


def find_applicants(job: str, view: ViewState) -> Applicants:
    """Return the nodes that request ``job`` in ``view``."""
    requests = view.requests_for(job)
    waiting = {node: request for node, request in requests.items() if not request.round}
    running = {node: request for node, request in requests.items() if request.round}
    candidates = running or waiting
    seniority = job_seniority.order_by_seniority(view, requests)
    reference = next(node for node in seniority if node in candidates)
    fingerprint = requests[reference].fingerprint
    trained = frozenset(running) | job_seniority.last_rounds(requests).keys()
    equal = [
        n for n in seniority if not differences(fingerprint, requests[n].fingerprint)
    ]
    # --rank0 counts only from machines that have trained, if there are any.
    deciding = [n for n in equal if n in trained] or equal
    return Applicants(
        waiting,
        running,
        reference,
        fingerprint,
        seniority,
        next((requests[n].rank0 for n in deciding if requests[n].rank0), ""),
        trained,
    )
