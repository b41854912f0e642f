"""How the ranks of a group and of its sub-groups connect: one class per transport."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from ringleader.deadline import Deadline
from ringleader.groups.handle import view_hash
from ringleader.transport import mesh as meshes
from ringleader.transport.dialer import DialLimits, Endpoint
from ringleader.transport.listener import Listener
from ringleader.transport.mesh import Mesh
from ringleader.transport.mesh_config import MeshConfig

at_end: dict[str, Callable[[], None]] = {}
"""Transport -> what must end before the process does, after all groups are closed."""


class Connector(Protocol):
    """Connects the mesh of a group, and later those of its sub-groups."""

    @property
    def hub(self) -> int | None:
        """The rank that relays for all others, -1 if it is no member; usually None."""
        ...

    def __call__(self, ranks: Sequence[int], name: str, deadline: Deadline) -> Mesh:
        """Connect to ``ranks`` of the first group, which form a group ``name``."""
        ...

    def close(self) -> None:
        """Let go of what all meshes share. Idempotent."""
        ...


class SocketConnector:
    """Connects by TCP or TLS over one listener, and by shared memory on one host."""

    hub = None

    def __init__(  # noqa: PLR0913 - one keyword each
        self,
        rank: int,
        endpoints: Sequence[Endpoint],
        listener: Listener,
        *,
        share_memory: bool,
        num_stripes: int,
        stop_listening: Callable[[], None],
        at_once: bool = False,
        dial_limits: DialLimits | None = None,
    ) -> None:
        self._dial_limits = dial_limits
        self._rank = rank
        self._endpoints = endpoints
        self._listener = listener
        self._share_memory = share_memory
        self._num_stripes = num_stripes
        self._at_once = at_once
        self.close = stop_listening

    def __call__(self, ranks: Sequence[int], name: str, deadline: Deadline) -> Mesh:
        """See Connector."""
        credentials = self._listener.credentials
        config = MeshConfig(
            rank=list(ranks).index(self._rank),
            size=len(ranks),
            group=view_hash(name),
            endpoints=tuple(self._endpoints[r] for r in ranks),
            namespace=bytes(16) if credentials is None else credentials.namespace,
            share_memory=self._share_memory,
            num_stripes=self._num_stripes,
            dial_limits=self._dial_limits,
            at_once=self._at_once,
        )
        return meshes.connect(config, self._listener, deadline)
