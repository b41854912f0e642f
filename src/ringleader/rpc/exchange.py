"""Exchange: sends and receives the messages of an endpoint and keeps its state.

It knows the pending calls, the references and which ranks are lost or done. What other
ranks want to have run is passed on to ``serve`` (server.py).
"""

from __future__ import annotations

import secrets
from collections import deque
from collections.abc import Callable, Sequence

from torch import Tensor

from ringleader.engine.arrays import dtype_name
from ringleader.errors import (
    ConfigError,
    GroupAborted,
    InternalError,
    PeerError,
    PeerLost,
    ProtocolError,
)
from ringleader.rpc import values
from ringleader.rpc.calls import Calls
from ringleader.rpc.channel import Received
from ringleader.rpc.io_thread import IoThread
from ringleader.rpc.messages import (
    Add,
    Added,
    Call,
    Confirm,
    Done,
    Drop,
    Ended,
    Failure,
    Fetch,
    Hello,
    Message,
    Reference,
    Result,
    TensorSpec,
    Value,
)
from ringleader.rpc.peers import Peer
from ringleader.rpc.pool import Pool
from ringleader.rpc.references import References
from ringleader.rpc.remote_error import again, error_of
from ringleader.rpc.rref import Holder, RRef
from ringleader.rpc.watch import Watch
from ringleader.transport.mesh import Mesh

IDLE_S = 3600.0
STOP_S = 2.0
"""Time for running functions to end at the end."""

Serve = Callable[[int, Received], None]


class Exchange:
    """The messages of one endpoint. Any thread may call the methods, unless they say
    otherwise."""

    def __init__(self, rank: int, mesh: Mesh, max_bytes: int, num_threads: int) -> None:
        self.rank = rank
        self.size = len(mesh.bulk) + 1
        self.nonce = secrets.randbits(63)
        self.max_bytes = max_bytes
        self.peers = {r: Peer.of_mesh(r, mesh, max_bytes) for r in mesh.bulk}
        self.watch = Watch()
        workers = f"ringleader-rpc-{rank}-worker"
        self.pool = Pool(num_threads, workers, self.watch.note_change)
        self.calls = Calls(self.pool.submit)
        self.references = References(rank, self.post)
        self.failure: Exception | None = None
        """Why no call can be made any more."""
        self._mesh = mesh
        self._inbox: deque[Received] = deque()
        """Messages of this rank to itself."""
        self._dropped: deque[Reference] = deque()
        self._failed: deque[tuple[int, PeerError]] = deque()
        channels = [c for p in self.peers.values() for c in (p.control, p.bulk)]
        self._io = IoThread(f"ringleader-rpc-{rank}", channels)
        self._holder: Holder
        self._handlers: dict[type[Message], Serve] = {}

    def start(self, holder: Holder, serve: Serve, name: str) -> None:
        """Begin to receive, and tell the other ranks who this is."""
        self._holder = holder
        self._handlers = {
            Call: serve,
            Fetch: serve,
            Result: self._finish,
            Failure: self._fail,
            Hello: self._learn,
            Done: self._learn,
            Ended: self._learn,
            **dict.fromkeys((Add, Added, Drop, Confirm), self._count),
        }
        self._io.start(self)
        for peer in self.peers:
            self.post(peer, Hello(name, self.max_bytes))

    # -- sending -------------------------------------------------------------------

    def post(self, to: int, message: Message) -> None:
        """Send a message; if that fails, the rank is lost. Never raises."""
        self.send(to, message)

    def send(
        self,
        to: int,
        message: Message,
        tensors: Sequence[Tensor] = (),
        is_void: Callable[[], bool] = lambda: False,
        on_void: Callable[[], None] = lambda: None,
    ) -> None:
        """Send a message; ConfigError if it is too long.

        ``is_void`` is asked before the first byte; a message that is not sent ends with
        ``on_void``.
        """
        if to == self.rank:
            self._inbox.append(Received(message, [each.clone() for each in tensors]))
            self._io.wake()
            return
        try:
            if self.peers[to].send(message, tensors, is_void, on_void):
                self._io.wake()
        except PeerError as exc:
            self._failed.append((to, exc))
            self._io.wake()

    def pack(
        self, value: object, to: int, new: Sequence[Reference] = ()
    ) -> tuple[Value, list[Tensor]]:
        """Return a value as it travels to a rank, and its tensors in host memory.

        Its references, and those in ``new``, are lent to that rank.
        """
        content, tensors, rrefs = values.encode(value)
        if not tensors and not rrefs and not new:
            return Value(values.raw(content)), []
        for rref in rrefs:
            if not rref.belongs_to(self._holder):
                raise ConfigError(f"rpc: {rref!r} belongs to another endpoint")
        specs = tuple(TensorSpec(dtype_name(t.dtype), tuple(t.shape)) for t in tensors)
        references = tuple(rref.reference for rref in rrefs)
        lent = (*references, *new)
        loan = self.references.lend(lent, to) if lent else 0
        hosts = [each.detach().cpu() for each in tensors]
        return Value(values.raw(content), specs, references, loan), hosts

    def borrow(self, value: Value, peer: int) -> list[RRef]:
        """Return RRefs for the references that a message of ``peer`` carries."""
        if not value.loan:
            if value.references:
                raise ProtocolError(peer, "RPC: references without a loan")
            return []
        if any(not 0 <= r.owner < self.size for r in value.references):
            raise ProtocolError(peer, "RPC: a reference to a rank that does not exist")
        self.references.borrow(value.references, peer, value.loan)
        return [RRef(self._holder, each) for each in value.references]

    def forget(self, reference: Reference) -> None:
        """End the use of an RRef, soon; called by the garbage collector."""
        if self.failure is None:
            self._dropped.append(reference)
            self._io.wake()

    # -- the thread ----------------------------------------------------------------

    def receive(self, peer: int, received: Received) -> None:
        """See io_thread.Handler."""
        self._handlers[type(received.message)](peer, received)

    def _fail(self, peer: int, received: Received) -> None:
        message = received.message
        assert isinstance(message, Failure)
        if call := self.calls.take(message.id, peer):
            call.future.set_exception(error_of(message, peer))

    def _learn(self, peer: int, received: Received) -> None:
        message, known = received.message, self.peers[peer]
        if not isinstance(message, Hello):
            known.is_done = True
            known.has_ended = isinstance(message, Ended)
        elif not message.name or message.max_bytes < 0:
            raise ProtocolError(peer, f"RPC: its hello is {message}"[:200])
        else:
            known.max_bytes, known.name = message.max_bytes, message.name

    def _count(self, peer: int, received: Received) -> None:
        message = received.message
        assert isinstance(message, Add | Added | Drop | Confirm)
        self.references.receive(peer, message)

    def _finish(self, peer: int, received: Received) -> None:
        result = received.message
        assert isinstance(result, Result)
        rrefs = self.borrow(result.value, peer)  # also for a call that has expired
        call = self.calls.take(result.id, peer)
        if call is None:
            return
        try:
            value = values.decode(result.value.content, received.tensors, rrefs)
        except Exception as exc:  # noqa: BLE001 - a class of the user may raise any
            call.future.set_exception(ProtocolError(peer, f"RPC: its result: {exc}"))
        else:
            call.future.set_result(value)

    def lose(self, peer: int, error: PeerError) -> None:
        """See io_thread.Handler."""
        lost = self.peers[peer]
        if lost.lost is not None:
            return
        if lost.has_ended and isinstance(error, PeerLost):
            error = PeerLost(peer, "has shut down its RPC")
        lost.lost = error
        lost.close()
        for call in self.calls.take_all(peer):
            text = f"{error.text}, before it answered {call.what}"
            call.future.set_exception(type(error)(peer, text))
        self.references.forget_rank(peer)

    def tick(self) -> None:
        """See io_thread.Handler."""
        while self._inbox:
            self.receive(self.rank, self._inbox.popleft())
        while self._dropped:
            self.references.release(self._dropped.popleft())
        while self._failed:
            self.lose(*self._failed.popleft())
        self.calls.expire()
        self.watch.note_change()

    def wake(self) -> None:
        """Let the thread compute anew when something is due."""
        self._io.wake()

    def idle_s(self) -> float:
        """See io_thread.Handler."""
        return self.calls.idle_s(IDLE_S)

    def crash(self, error: InternalError) -> None:
        """See io_thread.Handler."""
        self.failure = error
        for call in self.calls.take_all():
            call.future.set_exception(again(error))
        for peer in self.peers.values():
            peer.close()
        self.watch.note_change()

    # -- the end -------------------------------------------------------------------

    def close(self) -> None:
        """End all calls and close all connections."""
        self.failure = GroupAborted("rpc.shutdown() has ended the calls")
        self._io.stop()
        for peer in self.peers.values():
            peer.close()
        self._mesh.close()
        for call in self.calls.take_all():
            call.future.set_exception(again(self.failure))
        self.pool.stop(STOP_S)
        self.references.clear()

    def hang_up(self) -> None:
        """Close all connections, as a forked child must: its threads do not exist."""
        self.failure = GroupAborted("the process has forked; RPC belongs to its parent")
        self._io.hang_up()
        self._mesh.close()
