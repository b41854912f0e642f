"""What a process learns of the round that it enters. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from ringleader.ids import NodeId
from ringleader.node.agent import fingerprint_check
from ringleader.node.agent.fingerprint_check import Machine
from ringleader.node.agent.local_node import LocalNode
from ringleader.node.agent.rank_assignment import Round
from ringleader.node.agent.view_state import ViewState
from ringleader.node.protocol.local_requests import RoundEntered


@dataclass(slots=True)
class WorkerConfig:
    """Settings for the worker processes of a round."""

    credentials: str
    local: LocalNode
    lost_after_s: float
    agent_socket: str
    """Path of the agent's Unix socket."""
    silence_s: float = 0.0
    """How long the agents wait for a silent machine before they go on without it."""


def enter(
    chosen: Round, view: ViewState, mine: NodeId, worker: WorkerConfig, store_port: int
) -> RoundEntered:
    """Describe the round ``chosen``, which ``view`` began, to a process of ``mine``."""
    rank = chosen.nodes.index(mine)
    peers = view.states if chosen.is_joined else chosen.nodes
    others = {node: view.states[node].addresses for node in peers if node != mine}
    return RoundEntered(
        round=chosen.id,
        rank=rank,
        size=len(chosen.nodes),
        store_port=store_port,
        names=[view.names()[node] for node in chosen.nodes],
        credentials=worker.credentials,
        addresses=worker.local.addresses,
        interface=worker.local.interface_towards(others),
        lost_after_s=worker.lost_after_s,
        is_joiner=chosen.is_joined,
        agent_socket=worker.agent_socket,
        silence_s=worker.silence_s,
    )


def warnings(job: str, chosen: Round, view: ViewState) -> list[str]:
    """Return what differs between the machines of a round that may train."""
    requests = view.requests_for(job)
    return fingerprint_check.warnings(
        [
            Machine(node, view.states[node], requests[node].fingerprint)
            for node in chosen.nodes
            if node in requests
        ]
    )
