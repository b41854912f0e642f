"""MeshConfig: how one group connects."""

from __future__ import annotations

from dataclasses import dataclass

from ringleader.errors import ConfigError
from ringleader.transport.dialer import DialLimits, Endpoint
from ringleader.wire import hello as wire


@dataclass(frozen=True, slots=True, kw_only=True)
class MeshConfig:
    """How one group connects."""

    rank: int
    size: int
    group: int
    """Hash of the view id."""
    endpoints: tuple[Endpoint, ...]
    """Addresses and node of each rank."""
    namespace: bytes = bytes(16)
    num_stripes: int = 1
    """TCP connections per peer; more than one pays on long fat networks only."""
    share_memory: bool = True
    dial_limits: DialLimits | None = None
    at_once: bool = False
    """True if all ranks listen already, and form no other group of this name. Then they
    dial each other at the same time, and one that refuses connections is gone for good.
    Otherwise each dials one after another: who has connected to all may form the next
    group of the same name, and so nobody it has passed may wait for an earlier one."""

    def __post_init__(self) -> None:
        if not 1 <= self.num_stripes <= wire.MAX_STRIPES:
            text = (
                f"need 1 <= num_stripes <= {wire.MAX_STRIPES}, got {self.num_stripes}"
            )
            raise ConfigError(text)

    def group_at(self, rank: int) -> int:
        """Return the number of this group at the listener of ``rank``."""
        return self.group ^ self.endpoints[rank].channel
