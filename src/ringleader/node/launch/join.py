"""``join``: forms a group with other machines from a plain Python process.

The process is a node with one rank. Its agent is a separate process, started here.
"""

from __future__ import annotations

import msgspec

from ringleader import settings
from ringleader.collectives.config import CollectiveConfig
from ringleader.deadline import Deadline
from ringleader.errors import ConfigError
from ringleader.groups import formation
from ringleader.groups.group import Group, handle_of
from ringleader.groups.link_credentials import load_credentials
from ringleader.node.launch.agent_settings import agent_config
from ringleader.node.launch.job_fingerprint import job_fingerprint
from ringleader.node.launch.own_agent import (
    join_round_here,
    leave_job_here,
    own_agent,
)
from ringleader.node.launch.rendezvous import check_round
from ringleader.node.protocol.agent_config import AgentConfig
from ringleader.node.protocol.local_requests import EnterJob, GetSnapshot
from ringleader.node.protocol.snapshot import Snapshot

MAX_NODES = 64
WAIT_S = 10.0
TIMEOUT_S = 300.0
SNAPSHOT_S = 60.0


def join(  # noqa: PLR0913 - all are options, and are given by name
    nodes: int | None = None,
    *,
    min_nodes: int = 2,
    wait_s: float = WAIT_S,
    job: str = "default",
    peers: str = "",
    coordinator: str = "",
    rank0: str = "",
    transport: str = "auto",
    config: CollectiveConfig | None = None,
    timeout_s: float = TIMEOUT_S,
) -> Group:
    """Find other machines of the cluster, form a group with them and return it.

    They are found by multicast and ``peers``, or through the coordinator at HOST:PORT.
    With ``nodes`` exactly that many take part; else at least ``min_nodes``, and all
    that come within ``wait_s`` after that. ``rank0`` names the machine that must be
    rank 0; by default it is the one that has taken part longest. When a machine is
    lost, the operations of the group raise ``PeerError``: close the group and join
    again. This process stays a node of the cluster until it ends.
    """
    request = group_request(
        job, nodes, min_nodes, wait_s=wait_s, timeout_s=timeout_s, rank0=rank0
    )
    found_by = agent_config(coordinator=coordinator, peers=peers)
    return join_group(request, found_by, transport=transport, config=config)


def group_request(
    job: str,
    nodes: int | None,
    min_nodes: int,
    *,
    wait_s: float,
    timeout_s: float,
    rank0: str,
) -> EnterJob:
    """Return the request for a group; the options are those of ``join``."""
    return EnterJob(
        job=job,
        min_nodes=nodes or min_nodes,
        max_nodes=nodes or MAX_NODES,
        wait_s=wait_s,
        timeout_s=timeout_s,
        # Only our own calls are made here, which do not depend on torch's release.
        fingerprint=msgspec.structs.replace(job_fingerprint(None), torch=""),
        rank0=rank0,
    )


def join_group(
    request: EnterJob,
    agent: AgentConfig,
    *,
    transport: str = "auto",
    config: CollectiveConfig | None = None,
) -> Group:
    """Form a group with the nodes that request the same job, and return it."""
    rendezvous = join_round_here(request, agent)
    entered, job = rendezvous.entered, request.job
    try:
        links = settings.LinkSettings.from_environment()
        options = formation.Options(
            deadline=Deadline.after(request.timeout_s),
            config=config,
            transport=transport,
            num_stripes=links.connections,
            addresses=links.addresses,
            credentials=load_credentials(links),
            plaintext=links.plaintext,
            ports=links.ports,
        )
        group = formation.over_store(
            rendezvous.store, entered.rank, entered.size, entered.round, options
        )
    except BaseException:
        leave_job_here(job)
        raise
    closing = handle_of(group).on_close

    def on_close() -> None:
        closing()
        leave_job_here(job)

    handle_of(group).on_close = on_close
    return group


def should_rejoin(job: str = "default") -> bool:
    """Return whether another machine waits to take part, or one of ours is gone.

    Ranks learn of it at different times: agree on it, for example by a max over all of
    them every hundred steps, before you close the group and join again.
    """
    agent = own_agent()
    return agent is not None and check_round(agent, job).is_stale


def snapshot() -> Snapshot:
    """Return what the agent of this process knows of the cluster.

    Raises ``ConfigError`` if this process has not joined.
    """
    agent = own_agent()
    if agent is None:
        raise ConfigError("this process has joined no cluster")
    reply = agent.ask(GetSnapshot(), Deadline.after(SNAPSHOT_S))
    assert isinstance(reply, Snapshot)
    return reply
