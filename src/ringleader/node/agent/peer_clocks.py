"""``PeerClocks``: how far the clocks of other nodes are ahead of ours."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from ringleader.ids import NodeId
from ringleader.node.protocol.hello import AgentHello


@dataclass(slots=True)
class PeerClocks:
    """Differences in seconds, measured when a link opened; off by its latency."""

    wall: dict[NodeId, float] = field(default_factory=dict)
    """Seconds that wall clocks of nodes are ahead, as status shows them."""
    monotonic: dict[NodeId, float] = field(default_factory=dict)
    """Seconds that monotonic clocks of linked nodes are ahead; compares start times."""

    def on_link(self, hello: AgentHello) -> None:
        """Compare the clocks in a hello that has just arrived with ours."""
        self.wall[hello.node] = hello.clock_s - time.time()
        self.monotonic[hello.node] = hello.monotonic_s - time.monotonic()
