"""Server: runs registered functions for other ranks and hands out values.

``serve`` decides in the thread of the endpoint; functions run in the pool.
"""

from __future__ import annotations

import traceback
from collections.abc import Sequence
from functools import partial

from torch import Tensor

from ringleader.deadline import Deadline
from ringleader.errors import ProtocolError
from ringleader.rpc import registry, values
from ringleader.rpc.channel import Received
from ringleader.rpc.exchange import Exchange
from ringleader.rpc.messages import Call, Failure, Fetch, Reference, Result, Value
from ringleader.rpc.owned_value import OwnedValue
from ringleader.rpc.rref import RRef

MAX_QUEUED = 16384
"""Calls that wait for a thread; more are refused."""
TEXT_BYTES = 8 << 10
TRACEBACK_BYTES = 32 << 10
"""Together shorter than every limit on messages."""


class Server:
    """Serves the calls and fetches of all ranks, this one included."""

    def __init__(self, exchange: Exchange) -> None:
        self._exchange = exchange

    def serve(self, peer: int, received: Received) -> None:
        """Begin to answer a Call or Fetch; raises ProtocolError if it is invalid."""
        if isinstance(received.message, Call):
            self._begin_call(peer, received.message, received.tensors)
        elif isinstance(received.message, Fetch):
            self._begin_fetch(peer, received.message)

    # -- calls ---------------------------------------------------------------------

    def _begin_call(self, peer: int, call: Call, tensors: Sequence[Tensor]) -> None:
        owned = None
        if call.reference is not None:
            owned = self._create(peer, call.reference)
        rrefs = self._exchange.borrow(call.arguments, peer)
        deadline = Deadline.after(call.timeout_s)
        if self._exchange.pool.num_queued() >= MAX_QUEUED:
            text = f"{MAX_QUEUED} calls wait for a thread there; call less at once"
            self._fail(peer, Failure(call.id, f"{call.function!r}: {text}"), owned)
            return
        job = partial(self._run, peer, call, tensors, rrefs, owned, deadline)
        self._exchange.pool.submit(job)

    def _create(self, peer: int, reference: Reference) -> OwnedValue:
        references, me = self._exchange.references, self._exchange.rank
        if peer == me:  # created by the call; gone if nobody uses it any more
            return references.find(reference) or OwnedValue()
        try:
            if (reference.owner, reference.creator) != (me, peer):
                raise ValueError(f"{reference} of rank {reference.owner}")
            return references.create(reference, peer)
        except ValueError as exc:
            raise ProtocolError(peer, f"RPC: asks for a value as {exc}") from None

    def _run(
        self,
        peer: int,
        call: Call,
        tensors: Sequence[Tensor],
        rrefs: Sequence[RRef],
        owned: OwnedValue | None,
        deadline: Deadline,
    ) -> None:
        """Run a function and answer; in a thread of the pool."""
        if deadline.is_over() and owned is None:
            return  # the caller has given up
        function = registry.find_function(call.function)
        if function is None:
            self._fail(peer, _unknown(call), owned)
            return
        try:
            args, kwargs = values.decode(call.arguments.content, tensors, rrefs)
        except Exception as exc:  # noqa: BLE001 - a class of the user may raise any
            text = f"the arguments of {call.function!r} were refused: {_text_of(exc)}"
            self._fail(peer, Failure(call.id, _cut(text, TEXT_BYTES)), owned)
            return
        try:
            result = function(*args, **kwargs)
        except BaseException as exc:  # noqa: BLE001 - the caller gets it
            self._fail(peer, _failure(call.id, exc), owned)
            return
        if owned is None:
            self._reply(peer, call.id, result)
        else:
            self._exchange.references.resolve(owned, result)
            self._exchange.post(peer, Result(call.id, Value()))

    def _reply(self, peer: int, call_id: int, result: object) -> None:
        exchange = self._exchange
        loan = 0
        try:
            value, tensors = exchange.pack(result, peer)
            loan = value.loan
            exchange.send(peer, Result(call_id, value), tensors)
        except Exception as exc:  # noqa: BLE001 - it cannot be sent, or is too long
            if loan:
                exchange.references.return_loan(peer, loan)
            exchange.post(peer, _failure(call_id, exc))

    def _fail(self, peer: int, failure: Failure, owned: OwnedValue | None) -> None:
        if owned is not None:
            self._exchange.references.resolve(owned, None, failure)
        self._exchange.post(peer, failure)

    # -- values --------------------------------------------------------------------

    def _begin_fetch(self, peer: int, fetch: Fetch) -> None:
        references = self._exchange.references
        if fetch.reference.owner != self._exchange.rank:
            raise ProtocolError(peer, f"RPC: fetches {fetch.reference} here")
        owned = references.find(fetch.reference)
        if owned is None:
            self._exchange.post(peer, Failure(fetch.id, gone(fetch.reference)))
            return
        deadline = Deadline.after(fetch.timeout_s)
        job = partial(self._answer, peer, fetch.id, owned, deadline)
        references.when_ready(owned, lambda: self._exchange.pool.submit(job))

    def _answer(
        self, peer: int, call_id: int, owned: OwnedValue, deadline: Deadline
    ) -> None:
        """Send a value that is there; in a thread of the pool."""
        if deadline.is_over():
            return  # the caller has given up
        if owned.failure is None:
            self._reply(peer, call_id, owned.value)
        else:
            told = owned.failure
            failure = Failure(call_id, told.text, told.kind, told.traceback)
            self._exchange.post(peer, failure)


def gone(reference: Reference) -> str:
    """Return the text of the error about a value that its owner does not have."""
    return (
        f"the value of {reference} is gone: no rank holds an RRef to it any more, or "
        f"rank {reference.owner} has been restarted"
    )


def _unknown(call: Call) -> Failure:
    known = ", ".join(registry.function_names())[:500] or "none"
    name = repr(call.function[: registry.MAX_NAME])
    text = f"no function is registered there as {name}; there are: {known}"
    return Failure(call.id, _cut(text, TEXT_BYTES))


def _failure(call_id: int, exc: BaseException) -> Failure:
    trace = "".join(traceback.format_exception(exc))
    return Failure(
        call_id,
        _cut(_text_of(exc), TEXT_BYTES),
        type(exc).__name__,
        _cut(trace, -TRACEBACK_BYTES),
    )


def _text_of(exc: BaseException) -> str:
    try:
        return str(exc)
    except Exception as other:  # noqa: BLE001 - the answer must be sent
        return f"its text cannot be read ({type(other).__name__})"


def _cut(text: str, num_bytes: int) -> str:
    """Return the first bytes of a text, or the last ones, as text that can be sent.

    What UTF-8 cannot express, as in names of files, becomes a question mark.
    """
    data = text.encode(errors="replace")
    data = data[:num_bytes] if num_bytes > 0 else data[num_bytes:]
    return data.decode(errors="ignore")
