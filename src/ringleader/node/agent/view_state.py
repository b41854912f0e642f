"""``ViewState``: a view with the node states of its members decoded."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

from ringleader.ids import NodeId, tell_apart
from ringleader.membership.member import View
from ringleader.node.peering.peer_connection import Address
from ringleader.node.protocol import node_state
from ringleader.node.protocol.node_addresses import can_dial
from ringleader.node.protocol.node_state import JobRequest, NodeState, SplitSeen


@dataclass(frozen=True, slots=True)
class ViewState:
    """The nodes of one view. Equal on all of them."""

    view_id: str
    by_seniority: tuple[NodeId, ...]
    """The oldest node first: it is the leader."""
    states: Mapping[NodeId, NodeState]
    """In ring order."""

    @property
    def epoch(self) -> int:
        """Counter of the view; later views have greater ones."""
        return int(self.view_id.partition("@")[0])

    @classmethod
    def from_view(cls, view: View) -> Self:
        """Decode the payloads of a view; members with an invalid one are left out."""
        payloads = dict(zip(view.members, view.payloads, strict=True))
        known = node_state.decode_all(payloads)
        return cls(
            f"{view.id.counter}@{view.id.leader}/{view.id.incarnation}",
            tuple(member.node for member in sorted(known)),
            {m.node: known[m] for m in view.members if m in known},
        )

    def split_from(self, previous: ViewState | None) -> SplitSeen | None:
        """Return the split that this view ends for a node that was in ``previous``.

        It does if the new leader was not in the previous view, and that one had other
        members than this node.
        """
        if previous is None or len(previous.states) < 2:
            return None
        leader, other = self.by_seniority[0], previous.by_seniority[0]
        if leader in previous.states:
            return None
        return SplitSeen(leader, other, previous.epoch)

    def names(self) -> dict[NodeId, str]:
        """Return the names of all nodes; nodes with equal names get their ids, too."""
        return tell_apart({node: state.name for node, state in self.states.items()})

    def jobs(self) -> set[str]:
        """Return all jobs that a node has requested."""
        states = self.states.values()
        return {request.job for state in states for request in state.job_requests}

    def requests_for(self, job: str) -> dict[NodeId, JobRequest]:
        """Return the requests for ``job`` by node, in ring order."""
        found = {node: state.request_for(job) for node, state in self.states.items()}
        return {node: request for node, request in found.items() if request is not None}

    def is_ready(self, job: str) -> bool:
        """Return whether the leader lets ``job`` start without more machines."""
        return job in self.states[self.by_seniority[0]].ready_jobs

    def addresses(self) -> dict[NodeId, list[Address]]:
        """Return the addresses of all nodes, as they announced them."""
        return {
            node: [
                (address, state.port)
                for address in state.addresses
                if can_dial(address)
            ]
            for node, state in self.states.items()
        }
