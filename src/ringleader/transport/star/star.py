"""Star connects the ranks of a world over gRPC: rank 0 listens, the others dial it.

Every connection between two ranks is a stream. Those between two workers pass through
rank 0, which relays them (``hub.py``). What travels in a stream, from the hello on, is
what would travel over TCP.
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import Future
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Protocol, Self

from ringleader.deadline import Deadline
from ringleader.errors import ConfigError
from ringleader.settings.coordinator import quiet_grpc
from ringleader.transport.star.event_loop import event_loop
from ringleader.transport.star.member import Member
from ringleader.transport.star.stream_listener import StreamListener
from ringleader.transport.star.stream_socket import StreamSocket, stream_socket_pair
from ringleader.transport.tcp_socket import Address

if TYPE_CHECKING:
    from ringleader.identity.certificates.pem import PemCredentials

FLUSH_S = 2.0
"""Time for which a rank that closes waits until its last bytes are sent."""
LINGER_S = 10.0
"""Time for which rank 0 carries the links of others after it has closed its own."""


class Side(Protocol):
    """The hub or a spoke. Everything runs in the event loop."""

    def open(self, to: int, rank_end: StreamSocket, sock: socket.socket) -> None:
        """Carry the bytes of ``sock`` to and from rank ``to``."""
        ...

    async def flush(self, within_s: float) -> None:
        """Wait until the bytes of closed connections are sent."""
        ...

    async def leave(self, linger_s: float) -> None:
        """End all calls."""
        ...


class Star:
    """A rank's place in a star: opens connections to other ranks, and takes theirs."""

    def __init__(self, member: Member, address: Address) -> None:
        self.member = member
        self.address = address
        """Where rank 0 listens."""
        self.listener = StreamListener()
        self._num_users = 1
        self._side: Side | None = None
        self._leaving: Future[None] | None = None

    @classmethod
    def listen(
        cls,
        member: Member,
        address: tuple[str, range],
        pem: PemCredentials | None,
        deadline: Deadline,
        accepts: Callable[[str], bool] | None = None,
    ) -> Self:
        """Return the star of rank 0, which listens on the first free port.

        ``accepts`` says whether a host may connect; None: every host.
        """
        host, ports = address
        require_grpc()
        from ringleader.transport.star.hub import Hub

        star = cls(member, (host, 0))

        async def begin() -> Side:
            hub = Hub(member, star.listener, accepts)
            star.address = host, await hub.listen(host, ports, pem, deadline)
            return hub

        star._begin(begin())
        return star

    @classmethod
    def dial(
        cls,
        member: Member,
        targets: Sequence[tuple[Address, PemCredentials | None]],
        deadline: Deadline,
    ) -> Self:
        """Return the star of a worker once rank 0 lets it in.

        ``targets`` are its addresses, each with the certificates to dial it.
        """
        require_grpc()
        from ringleader.transport.star.spoke import Spoke

        star = cls(member, targets[0][0])

        async def begin() -> Side:
            spoke = Spoke(member, star.listener)
            try:
                star.address = await spoke.attach(targets, deadline)
            except BaseException:
                await spoke.leave(0)
                raise
            return spoke

        star._begin(begin())
        return star

    def _begin(self, coroutine: Coroutine[Any, Any, Side]) -> None:
        event_loop.enter()
        beginning = event_loop.start(coroutine)
        try:
            self._side = beginning.result()
        except BaseException:
            beginning.cancel()
            event_loop.leave()
            self.listener.close()
            raise

    def add_user(self) -> None:
        """Count one more group that uses the star."""
        self._num_users += 1

    def remove_user(self) -> bool:
        """Count one group less; return whether it was the last."""
        self._num_users -= 1
        return self._num_users == 0

    def open(self, to: int) -> StreamSocket:
        """Return a connection to rank ``to`` of the world, not established yet."""
        side = self._side
        assert side is not None, "the star is closed"
        rank_end, sock = stream_socket_pair()

        async def begin() -> None:
            side.open(to, rank_end, sock)

        event_loop.start(begin())
        return rank_end

    def close(self) -> None:
        """Send what is left and leave the star. Idempotent.

        Rank 0 carries the links of others in the background until they leave, too,
        for at most LINGER_S.
        """
        if self._leaving is not None or self._side is None:
            return
        self.listener.close()
        side, self._side = self._side, None  # gRPC's thread ends with its last object
        flushing = event_loop.start(side.flush(FLUSH_S))
        self._leaving = event_loop.start(side.leave(LINGER_S))
        self._leaving.add_done_callback(lambda _: event_loop.leave())
        with contextlib.suppress(TimeoutError):
            flushing.result(FLUSH_S)

    def has_left(self) -> bool:
        """Return whether nobody uses the star any more."""
        return self._leaving is not None and self._leaving.done()

    def wait_until_left(self, within_s: float) -> None:
        """Wait until nobody uses the star any more; for the end of the program."""
        if self._leaving is not None:
            with contextlib.suppress(TimeoutError):
                self._leaving.result(within_s)


def require_grpc() -> None:
    """Prepare to import gRPC; ConfigError if it is not installed."""
    if find_spec("grpc") is None:
        how = "pip install 'ringleader[coordinator]'"
        raise ConfigError(f"transport grpc: grpcio is not installed; run: {how}")
    quiet_grpc()
