"""``link_to_coordinator``: makes the agent's link to the coordinator it is told of."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from ringleader.identity.user_credentials import UserCredentials
from ringleader.node.agent.agent_identity import AgentIdentity
from ringleader.node.agent.local_node import LocalNode
from ringleader.node.peering.coordinator_link import CoordinatorLink
from ringleader.node.protocol.agent_config import AgentConfig

if TYPE_CHECKING:
    from ringleader.coordinator.grpc_tls import TlsSource


def link_to_coordinator(
    config: AgentConfig,
    identity: AgentIdentity,
    local: LocalNode,
    on_rank: Callable[[], None],
    on_event: Callable[[str], None],
) -> CoordinatorLink:
    """Return the link; it does nothing if ``config`` names no coordinator."""
    return CoordinatorLink(
        config.coordinator,
        config.worker_id or identity.node,
        identity.cluster.coordinator_key(),
        None if config.plaintext else _certificates(identity),
        lambda own: [(each, local.port) for each in local.addresses_and(*own)],
        on_rank,
        on_event,
    )


def _certificates(identity: AgentIdentity) -> TlsSource:
    """Return the user's own certificates, or else those of the cluster."""
    if isinstance(identity.credentials, UserCredentials):
        return identity.credentials.pem
    pem = identity.credentials.pem()
    return lambda: pem
