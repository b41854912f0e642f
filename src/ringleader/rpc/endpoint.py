"""Endpoint: this process's part in the RPC of one group."""

from __future__ import annotations

import contextlib
import math
import threading
from collections.abc import Mapping, Sequence
from itertools import count
from typing import Any

from ringleader.deadline import Deadline
from ringleader.errors import ConfigError, DeadlineExceeded, PeerRefused
from ringleader.rpc import ending, pool, registry
from ringleader.rpc.calls import PendingCall
from ringleader.rpc.exchange import Exchange
from ringleader.rpc.future import Future
from ringleader.rpc.messages import Call, Fetch, Reference
from ringleader.rpc.registry import Function
from ringleader.rpc.remote_error import again, error_of
from ringleader.rpc.rref import RRef
from ringleader.rpc.server import Server, gone
from ringleader.transport.mesh import Mesh


class Endpoint:
    """Calls functions on the other ranks of a group and serves theirs.

    ``rpc.start()`` makes one. Any thread may call the methods. Tensors in arguments
    belong to the call until it has ended.
    """

    def __init__(self, exchange: Exchange, timeout: float) -> None:
        self.rank = exchange.rank
        self.size = exchange.size
        self.timeout = timeout
        """The time limit of calls that are not given one, in seconds."""
        self._exchange = exchange
        self._names: dict[str, int] = {}
        self._numbers = [count(1) for _ in range(exchange.size)]
        self._ending = threading.Lock()
        self._is_closed = False

    @classmethod
    def open(
        cls,
        rank: int,
        mesh: Mesh,
        *,
        name: str,
        timeout: float,
        threads: int,
        max_bytes: int,
    ) -> Endpoint:
        """Serve over the connections of ``mesh``, which the endpoint then owns.

        Returns when all ranks have told their names.
        """
        exchange = Exchange(rank, mesh, max_bytes, threads)
        endpoint = cls(exchange, timeout)
        try:
            exchange.start(endpoint, Server(exchange).serve, name)
            endpoint._meet(name)
        except BaseException:
            exchange.close()
            raise
        return endpoint

    def _meet(self, name: str) -> None:
        peers = self._exchange.peers.values()

        def have_all_met() -> bool:
            return all(p.name or p.lost for p in peers)

        self._exchange.watch.wait(have_all_met, self.timeout)
        for peer in peers:
            if peer.lost is not None:
                raise peer.lost
            if not peer.name:
                text = f"did not start its RPC within {self.timeout:.3g} s"
                raise DeadlineExceeded(peer.rank, text)
        for each, rank in [(name, self.rank), *((p.name, p.rank) for p in peers)]:
            if each in self._names:
                text = f"ranks {self._names[each]} and {rank} have the name {each!r}"
                raise ConfigError(f"rpc.start: {text}; give each rank its own")
            self._names[each] = rank

    # -- calls ---------------------------------------------------------------------

    def rpc_sync(
        self,
        to: int | str,
        func: str | Function,
        args: Sequence[object] = (),
        kwargs: Mapping[str, object] | None = None,
        timeout: float | None = None,
    ) -> Any:  # noqa: ANN401 - any value
        """Run a registered function on rank ``to`` and return its result.

        Raises RemoteError if the function raised, PeerRefused if it is not registered
        there, PeerLost if the rank is gone and DeadlineExceeded after ``timeout``
        seconds.
        """
        return self.rpc_async(to, func, args, kwargs, timeout).wait()

    def rpc_async(
        self,
        to: int | str,
        func: str | Function,
        args: Sequence[object] = (),
        kwargs: Mapping[str, object] | None = None,
        timeout: float | None = None,
    ) -> Future:
        """Like ``rpc_sync``, but return a future of the result at once."""
        rank, name = self.rank_of(to), registry.name_of(func)
        return self._call(rank, name, self._deadline(timeout), (args, kwargs))

    def remote(
        self,
        to: int | str,
        func: str | Function,
        args: Sequence[object] = (),
        kwargs: Mapping[str, object] | None = None,
        timeout: float | None = None,
    ) -> RRef:
        """Run a registered function on rank ``to``, which keeps the result.

        Returns a reference at once. An error of the function is raised by ``to_here``.
        ``shutdown`` waits for the function ``timeout`` seconds.
        """
        rank, name = self.rank_of(to), registry.name_of(func)
        deadline = self._deadline(timeout)
        reference = self._new_reference(rank)
        references = self._exchange.references
        if rank == self.rank:
            references.create(reference, rank)
        else:
            references.hold_new(reference)
        rref = RRef(self, reference)
        self._call(rank, name, deadline, (args, kwargs), reference)
        return rref

    def rref(self, value: object) -> RRef:
        """Return a reference to a value of this process, for other ranks."""
        self._check_open()
        reference = self._new_reference(self.rank)
        references = self._exchange.references
        references.resolve(references.create(reference, self.rank), value)
        return RRef(self, reference)

    def _call(
        self,
        to: int,
        name: str,
        deadline: Deadline,
        arguments: tuple[Sequence[object], Mapping[str, object] | None],
        new: Reference | None = None,
    ) -> Future:
        """Call a function; with ``new`` its result stays there, under that name."""
        args, kwargs = list(arguments[0]), dict(arguments[1] or {})
        exchange, loan = self._exchange, 0
        call = exchange.calls.begin(to, f"the call of {name!r}", deadline)

        def is_void() -> bool:  # not with a name: other ranks may wait for the value
            return new is None and call.future.done()

        def return_loan() -> None:
            if loan:
                exchange.references.return_loan(to, loan)

        try:
            lent = () if new is None else (new,)
            value, tensors = exchange.pack([args, kwargs], to, lent)
            loan = value.loan
            message = Call(call.id, name, deadline.after_s, value, new)
            exchange.send(to, message, tensors, is_void, return_loan)
        except BaseException:
            exchange.calls.take(call.id, to)
            return_loan()
            raise
        self._follow(call)
        return call.future

    def _follow(self, call: PendingCall) -> None:
        """Make sure that a call which was just sent ends."""
        exchange, to = self._exchange, call.peer
        lost = exchange.failure
        if to != self.rank:
            lost = lost or exchange.peers[to].lost
        if lost is not None and exchange.calls.take(call.id, to):
            call.future.set_exception(again(lost))
        elif not exchange.calls.is_due_before(call.future.deadline):
            exchange.wake()

    # -- references ----------------------------------------------------------------

    def fetch(self, reference: Reference, timeout: float | None) -> Any:  # noqa: ANN401
        """See rref.Holder."""
        if reference.owner == self.rank:
            return self.local_value(reference, timeout)
        exchange, to = self._exchange, reference.owner
        deadline = self._deadline(timeout)
        call = exchange.calls.begin(to, f"the fetch of {reference}", deadline)
        exchange.send(to, Fetch(call.id, reference, deadline.after_s))
        self._follow(call)
        return call.future.wait()

    def local_value(self, reference: Reference, timeout: float | None) -> Any:  # noqa: ANN401
        """See rref.Holder."""
        self._check_open()
        if reference.owner != self.rank:
            text = f"{reference} is kept by rank {reference.owner}, not here"
            raise ConfigError(f"rpc: {text}; use to_here()")
        references, deadline = self._exchange.references, self._deadline(timeout)
        owned = references.find(reference)
        if owned is None:
            raise PeerRefused(self.rank, gone(reference))
        if not owned.is_ready:
            event = threading.Event()
            references.when_ready(owned, event.set)
            with pool.waiting():
                if not event.wait(deadline.left_s()):
                    text = f"{reference} has no value after {deadline.after_s:.3g} s"
                    raise DeadlineExceeded(self.rank, text)
            self._check_open()
        if owned.failure is not None:
            raise error_of(owned.failure, self.rank)
        return owned.value

    def forget(self, reference: Reference) -> None:
        """See rref.Holder."""
        self._exchange.forget(reference)

    def _new_reference(self, owner: int) -> Reference:
        nonce = self._exchange.nonce
        return Reference(owner, self.rank, nonce, next(self._numbers[owner]))

    # -- ranks ---------------------------------------------------------------------

    def rank_of(self, to: int | str) -> int:
        """Return the rank with this name, or the rank itself; ConfigError if none."""
        if isinstance(to, str) and to in self._names:
            return self._names[to]
        if isinstance(to, int) and 0 <= to < self.size:
            return to
        known = ", ".join(f"{rank} {name!r}" for name, rank in self._names.items())
        raise ConfigError(f"rpc: no rank {to!r} in this group; there are: {known}")

    def name_of(self, rank: int) -> str:
        """Return the name of a rank."""
        return next(name for name, each in self._names.items() if each == rank)

    def _deadline(self, timeout: float | None) -> Deadline:
        seconds = self.timeout if timeout is None else timeout
        if not 0 < seconds < math.inf:
            raise ConfigError(f"rpc: timeout {seconds!r}; use a number of seconds")
        self._check_open()
        return Deadline.after(seconds)

    def _check_open(self) -> None:
        if self._exchange.failure is not None:
            raise again(self._exchange.failure)

    # -- the end -------------------------------------------------------------------

    def shutdown(self, *, graceful: bool = True, timeout: float | None = 60.0) -> None:
        """End the endpoint; the second call does nothing.

        With ``graceful`` this rank first waits for its own calls, and then serves the
        other ranks until all of them have called ``shutdown`` or are lost. After
        ``timeout`` seconds it ends anyway and raises DeadlineExceeded; None waits as
        long as the other ranks live.
        """
        if pool.is_worker():
            raise ConfigError("rpc.shutdown: called by a function that serves a call")
        with self._ending:
            if self._is_closed:
                return
            self._is_closed = True
            try:
                if graceful and self._exchange.failure is None:
                    limit = None if timeout is None else Deadline.after(timeout)
                    ending.finish(self._exchange, limit)
            finally:
                ending.say_ended(self._exchange)
                self._exchange.close()

    def hang_up(self) -> None:
        """Close all connections, as a forked child must."""
        self._is_closed = True
        with contextlib.suppress(Exception):
            self._exchange.hang_up()
