"""``Job``: one job that a process of this node takes part in."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

import msgspec

from ringleader.ids import NodeId
from ringleader.node.agent import job_seniority
from ringleader.node.agent.rank_assignment import Round
from ringleader.node.agent.store_tunnel import StoreTunnel
from ringleader.node.agent.view_state import ViewState
from ringleader.node.protocol.job_failure import JobFailure
from ringleader.node.protocol.node_state import JobRequest, PastRound

OnProgress = Callable[[str], None]


@dataclass(slots=True)
class JobHistory:
    """What this process remembers of a job, also after it has left it."""

    started_s: float
    past_rounds: list[PastRound] = field(default_factory=list)


@dataclass(slots=True)
class Job:
    """A job that this node has requested."""

    request: JobRequest
    history: JobHistory
    on_progress: OnProgress
    outcome: asyncio.Future[Round]
    round: Round | None = None
    first_view: ViewState | None = None
    """The view that began the round: only later views can end it."""
    tunnel: StoreTunnel | None = None
    last_progress: str = ""
    last_round: Round | None = None
    """The round before, if this is not the first."""
    done: set[NodeId] = field(default_factory=set)
    """Nodes of the current or the last round that have finished."""
    joined: list[NodeId] = field(default_factory=list)
    """Nodes that joined the current round while it ran."""
    failed: set[NodeId] = field(default_factory=set)
    failures: dict[NodeId, JobFailure] = field(default_factory=dict)
    """What failed on the nodes of the current round."""
    can_return: bool = True
    """Whether a new life of the worker here could join the run that goes on."""
    lineage: str = ""
    """The history of the run that the worker here has finished."""
    lineages: dict[NodeId, str] = field(default_factory=dict)
    """Those of all nodes that have finished."""

    @property
    def participants(self) -> tuple[NodeId, ...]:
        """All nodes that are or were in the current or the last round."""
        current = self.round or self.last_round
        return (*current.nodes, *self.joined) if current else ()

    @property
    def is_established(self) -> bool:
        """Whether the round goes on whatever happens to the membership."""
        return self.request.survives and self.request.is_established

    def note_joined(self, view_state: ViewState) -> None:
        """Record the nodes that have joined the round of a job that survives."""
        if self.round is None or not self.request.survives:
            return
        for node, request in view_state.requests_for(self.request.job).items():
            if request.round == self.round.id and node not in self.participants:
                self.joined.append(node)

    def note_ends(self, view_state: ViewState) -> None:
        """Record which nodes finished or failed; they announce it before they leave."""
        current = self.round or self.last_round
        for node in self.participants:
            state = view_state.states.get(node)
            if state is None:
                continue
            self.failed.discard(node)  # it may have begun again
            for end in state.ended_jobs:
                if current is not None and end.round == current.id:
                    (self.done if end.ok else self.failed).add(node)
                    if end.history:
                        self.lineages[node] = end.history
            for failure in state.failures:
                if self.round is not None and failure.round == self.round.id:
                    self.failures[node] = failure

    def begin(self, chosen: Round, view_state: ViewState, mine: NodeId) -> None:
        """Record the round that ``view_state`` begins."""
        requests = view_state.requests_for(self.request.job)
        self.round, self.first_view = chosen, view_state
        self._remember(job_seniority.enter_round(view_state, requests, mine))

    def note_complete(self) -> None:
        """Record that all nodes of the round have entered it."""
        self._remember(job_seniority.complete_round(self.history.past_rounds))

    def _remember(self, past_rounds: list[PastRound]) -> None:
        self.history.past_rounds = past_rounds
        self.request = msgspec.structs.replace(
            self.request,
            round=self.round.id if self.round else "",
            past_rounds=past_rounds,
        )

    def is_left_alone(self, mine: NodeId) -> bool:
        """Return whether all other nodes of the last round have finished the job."""
        others = {*self.last_round.nodes} - {mine} if self.last_round else set()
        return self.round is None and bool(others) and others <= self.done
