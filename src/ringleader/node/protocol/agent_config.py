"""``AgentConfig``: the settings a process passes to the agent it starts."""

from __future__ import annotations

import msgspec

RUN_DIRECTORY = "run"
"""Directory in the ringleader home for files that live as long as an agent."""


class AgentConfig(
    msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True
):
    """Settings of an agent process."""

    home: str
    peers: str = ""
    """host:port,... of agents that mDNS does not find."""
    interfaces: list[str] = []
    """Names of the network interfaces to use; empty: chosen automatically."""
    port: int = 0
    """Port to listen on; 0: any free one."""
    profile: str = "lan"
    """Timing of failure detection; see ``peering.membership_profiles``."""
    name: str = ""
    """Name shown to other nodes; empty: the host name."""
    prints_events: bool = False
    """Whether the agent prints cluster events on standard error."""


CONFIG = msgspec.msgpack.Decoder(AgentConfig)
