"""``query_metrics``: asks the agents of this machine for their numbers."""

from __future__ import annotations

from pathlib import Path

from ringleader.deadline import Deadline
from ringleader.errors import PeerError
from ringleader.metrics.process_values import MAX_ENCODED, ProcessValues
from ringleader.metrics.worker_files import read_files
from ringleader.node.protocol.agent_client import (
    AgentClient,
    agent_sockets,
    connect_to_agent,
)
from ringleader.node.protocol.agent_config import metrics_directory

METRICS = "metrics"
"""Purpose of the service that answers."""
QUERY_S = 5.0
"""Limit for the answer of one agent."""
MAX_PROCESSES = 2048


def query_metrics(home: Path) -> list[ProcessValues]:
    """Return the values of all agents of this machine, and of its workers.

    Workers are found without an agent, too: theirs may have ended.
    """
    found: list[ProcessValues] = []
    for path in agent_sockets(home):
        deadline = Deadline.after(QUERY_S)
        agent = connect_to_agent(path, deadline)
        if agent is None:
            continue
        try:
            found += _ask(agent, deadline)
        except PeerError:
            continue  # this agent hangs; others may answer
        finally:
            agent.close()
    found += read_files(metrics_directory(home))
    # Agents of one user see the same workers.
    return list({each.labels.get("pid", ""): each for each in found}.values())


def _ask(agent: AgentClient, deadline: Deadline) -> list[ProcessValues]:
    agent.use_service(METRICS, deadline)
    found: list[ProcessValues] = []
    while len(found) < MAX_PROCESSES:
        body = agent.receive_body(deadline, MAX_ENCODED)
        if not body:
            break
        found.append(ProcessValues.decode(body))
    return found
