"""``agent_config``: settings of an agent, from options and the environment."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec

from ringleader import settings
from ringleader.discovery.static_peers import parse
from ringleader.errors import ConfigError
from ringleader.node.protocol.agent_config import AgentConfig
from ringleader.settings import coordinator as coordinator_settings

EXTRA = "pip install 'ringleader[coordinator]'"


def agent_config(  # noqa: PLR0913 - all are options, and are given by name
    *,
    coordinator: str = "",
    peers: str = "",
    interfaces: Sequence[str] = (),
    uses_mdns: bool | None = None,
    worker_id: str = "",
    plaintext: bool | None = None,
    port: int = 0,
    profile: str = "lan",
    warm: bool = False,
    prints_events: bool = False,
) -> AgentConfig:
    """Return the settings; what is not given comes from the environment.

    With a coordinator, nodes are looked for by multicast only if ``uses_mdns`` is True.
    Raises ``ConfigError`` if the coordinator cannot be used: before any process starts.
    """
    coordinator = _check_coordinator(coordinator or coordinator_settings.coordinator())
    if uses_mdns is None:
        uses_mdns = coordinator_settings.uses_mdns()
    return AgentConfig(
        home=str(settings.home_directory()),
        peers=f"{settings.peers()},{peers}",
        coordinator=coordinator,
        worker_id=worker_id,
        plaintext=coordinator_settings.is_plaintext()
        if plaintext is None
        else plaintext,
        uses_mdns=not coordinator if uses_mdns is None else uses_mdns,
        interfaces=list(interfaces) or settings.interfaces(),
        name=settings.node_name(),
        port=port,
        profile=profile,
        warm=warm,
        prints_events=prints_events,
    )


def _check_coordinator(address: str) -> str:
    """Return the address in one spelling; raises ``ConfigError``."""
    if not address:
        return ""
    try:
        (found,) = parse(address)
    except (ConfigError, ValueError) as exc:
        text = f"coordinator {address[:80]!r}: write HOST:PORT, or [IPV6]:PORT"
        raise ConfigError(text) from exc
    if find_spec("grpc") is None:
        text = f"coordinator {found}: grpcio is not installed; run: {EXTRA}"
        raise ConfigError(text)
    return str(found)
