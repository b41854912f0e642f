"""RunConfig: the settings of one member of an elastic run."""

from __future__ import annotations

import contextlib
import hashlib
import secrets
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib import metadata

from ringleader.errors import ConfigError
from ringleader.identity.node_credentials import NodeCredentials
from ringleader.ids import Incarnation
from ringleader.membership.config import MembershipConfig
from ringleader.membership.member import Member, Order, by_seniority
from ringleader.membership.steps.decide import Partition
from ringleader.training.control.sleep_clock import suspended_s
from ringleader.training.control.view_hooks import PeerSource

MAX_RUN_CHARACTERS = 200


def _own_version() -> str:
    with contextlib.suppress(metadata.PackageNotFoundError):
        return metadata.version("ringleader")
    return ""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunConfig:
    """Settings of one member of an elastic run."""

    run: str
    """Name of the run. Members of other runs are refused, also of other clusters."""
    credentials: NodeCredentials
    """They prove which node this is: one process per node and run."""
    peers: str = ""
    """Members to dial, as ``host:port,host:port``; one of them is enough."""
    source: PeerSource | None = None
    """Tells the members to dial while the run goes on, beside ``peers``."""
    is_joiner: bool = False
    """The run had begun before this process: it begins no history of its own."""
    port: int | range = 0
    """Port to listen on, or a range of which the first free one is used; 0: any."""
    timing: MembershipConfig = field(default_factory=MembershipConfig.for_training)
    order: Order = by_seniority
    read_suspended_s: Callable[[], float] = suspended_s
    """Returns how long this machine was suspended since it was started."""
    name: str = field(default_factory=socket.gethostname)
    """Name of this machine, for people."""
    partition: Partition = "continue"
    """Which part of a divided cluster goes on with a script of torch."""
    version: str = field(default_factory=_own_version)
    """Version of ringleader, which the others name if they speak another protocol."""

    def __post_init__(self) -> None:
        if not 0 < len(self.run) <= MAX_RUN_CHARACTERS or not self.run.isprintable():
            text = f"1 to {MAX_RUN_CHARACTERS} printable characters"
            raise ConfigError(f"the name of a run has {text}; got {self.run!r}")

    @property
    def id(self) -> str:
        """The id of the run in a hello: its name, and a hash of its cluster."""
        cluster = hashlib.sha256(self.credentials.namespace).hexdigest()[:12]
        return f"{self.run}@{cluster}"

    def new_member(self) -> Member:
        """Return a new life of this node."""
        incarnation = Incarnation(secrets.token_hex(8))
        return Member(int(time.time() * 1000), self.credentials.node, incarnation)
