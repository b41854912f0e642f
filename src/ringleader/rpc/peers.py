"""The other ranks of an endpoint, and how messages reach them.

There are two channels to each rank. Small messages travel on the control stream of the
mesh, which the sender writes itself; long ones on the bulk link, which may be shared
memory. So a tensor does not hold up the calls behind it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from torch import Tensor

from ringleader.engine.arrays import bytes_of
from ringleader.errors import ConfigError, PeerError
from ringleader.groups.tensors import input_array
from ringleader.rpc import messages
from ringleader.rpc.channel import Channel, Outgoing
from ringleader.rpc.messages import Message
from ringleader.transport.mesh import Mesh
from ringleader.transport.socket_link import SocketLink

SMALL_BYTES = 64 << 10
"""Messages up to this length take the control stream: they are sent in one piece, for
which they are copied."""


@dataclass(slots=True, eq=False)
class Peer:
    """Another rank."""

    rank: int
    control: Channel
    bulk: Channel
    name: str = ""
    """Empty until its Hello is here."""
    max_bytes: int = 1 << 16
    """The longest message that it accepts."""
    lost: PeerError | None = None
    is_done: bool = False
    """Whether it has called shutdown()."""
    has_ended: bool = False
    """Whether it said that it closes its connections."""

    @classmethod
    def of_mesh(cls, rank: int, mesh: Mesh, max_bytes: int) -> Peer:
        """Open both channels over the connections of ``mesh``."""
        control = SocketLink(mesh.control[rank], rank, "control")
        return cls(
            rank,
            Channel(rank, control, max_bytes),
            Channel(rank, mesh.bulk[rank], max_bytes),
        )

    def send(
        self,
        message: Message,
        tensors: Sequence[Tensor] = (),
        is_void: Callable[[], bool] = lambda: False,
        on_void: Callable[[], None] = lambda: None,
    ) -> bool:
        """Send a message; return whether the thread of the channels must go on.

        Raises PeerLost, and ConfigError if the message is too long.
        """
        views = [bytes_of(input_array(each, "rpc")) for each in tensors]
        tensor_bytes = sum(map(len, views))
        start = messages.encode(message, tensor_bytes)
        total = len(start) + tensor_bytes
        if total > self.max_bytes:
            text = f"a message of {total} bytes; rank {self.rank} accepts"
            text = f"rpc: {text} {self.max_bytes} bytes (RINGLEADER_RPC_MAX_BYTES)"
            raise ConfigError(f"{text}; send it in parts")
        if total <= SMALL_BYTES:
            data = b"".join([start, *views]) if views else start
            left = self.control.send_whole(data)
            if not len(left):
                return self.control.has_unsent()
            return self.control.send(Outgoing(deque([left]), is_void, on_void))
        parts = deque([memoryview(start), *(v for v in views if len(v))])
        return self.bulk.send(Outgoing(parts, is_void, on_void))

    def has_unsent(self) -> bool:
        """Return whether messages wait to be sent."""
        return self.control.has_unsent() or self.bulk.has_unsent()

    def close(self) -> None:
        """Close both channels. Idempotent."""
        self.control.close()
        self.bulk.close()
