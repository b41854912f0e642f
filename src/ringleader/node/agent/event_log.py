"""What happens to a cluster, in words for the person in front of the screen."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field

from ringleader.ids import NodeId, short
from ringleader.membership.events import Health, HealthChanged, KeyCloned
from ringleader.membership.member import Member, View


@dataclass(slots=True)
class Story:
    """Names of nodes, and lines on standard error if somebody wants them."""

    names: dict[NodeId, str]
    tells: bool
    clones: list[str] = field(default_factory=list)
    _shown: set[Member] = field(default_factory=set)

    def title(self, node: NodeId) -> str:
        """A node as people know it, with enough of its id to tell it apart."""
        return f"{self.names.get(node, 'a node')} ({short(node)})"

    def met(self, node: NodeId, name: str, address: str) -> None:
        """A link to a node is open."""
        is_new = node not in self.names
        self.names[node] = name
        if is_new:
            self._tell(f"found {self.title(node)} at {address}")

    def changed(self, change: HealthChanged) -> None:
        """A peer is in another state of health."""
        if change.health is Health.DEAD:
            self._tell(f"lost {self.title(change.peer.node)}: {change.why}")

    def viewed(self, view: View, names: Mapping[NodeId, str]) -> None:
        """A view is in force; told only if it holds other members than the last."""
        self.names.update(names)
        if set(view.members) == self._shown:
            return
        self._shown = set(view.members)
        listed = ", ".join(self.names.get(m.node, "?") for m in view.members)
        leader = self.names.get(view.id.leader, "?")
        self._tell(f"epoch {view.id.counter}: {listed}; leader {leader}")

    def cloned(self, clone: KeyCloned) -> None:
        """Two machines use one key."""
        text = (
            f"two machines use the key of node {short(clone.refused.node)}: was a home "
            "directory copied? On one of them run 'ringleader leave' and join again"
        )
        if text not in self.clones:
            self.clones.append(text)
            self._tell(text)

    def failed(self, error: BaseException | None) -> None:
        """The agent itself has failed, which must not look like anything else."""
        self.tells = True
        self._tell(f"the agent fails, please report it: {error!r}")

    def _tell(self, text: str) -> None:
        if self.tells:
            with contextlib.suppress(OSError):  # nobody reads any more: a closed pipe
                sys.stderr.write(f"ringleader: {text}\n")
                sys.stderr.flush()
