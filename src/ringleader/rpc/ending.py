"""How an endpoint ends without breaking off the calls of anybody.

A rank says Done when its own calls are answered, and goes on to serve the others. A
function that it runs meanwhile may still call other ranks: its own caller is not done
before that has ended. So when all ranks are done, no call is left anywhere.
"""

from __future__ import annotations

from ringleader.deadline import Deadline
from ringleader.errors import DeadlineExceeded
from ringleader.rpc.exchange import Exchange
from ringleader.rpc.messages import Done, Ended

FLUSH_S = 1.0
"""Time for the last messages to leave after everything else has ended."""


def finish(exchange: Exchange, deadline: Deadline | None) -> None:
    """Wait until no rank needs this one; DeadlineExceeded says what is not ready."""

    def left_s() -> float | None:
        return None if deadline is None else deadline.left_s()

    def is_idle() -> bool:
        has_ended = exchange.failure is not None
        return has_ended or not (len(exchange.calls) or exchange.pool.num_jobs())

    def absent() -> list[int]:
        if exchange.failure is not None:
            return []
        peers = exchange.peers.values()
        return [p.rank for p in peers if not p.is_done and p.lost is None]

    exchange.watch.wait(is_idle, left_s())
    say_done(exchange)
    if exchange.watch.wait(lambda: not absent() and is_idle(), left_s()):
        return
    assert deadline is not None
    limit = f"within {deadline.after_s:.3g} s"
    if missing := absent():
        text = f"rank {', '.join(map(str, missing))} did not call it, too, {limit}"
        raise DeadlineExceeded(missing[0], f"rpc.shutdown: {text}")
    text = f"calls or functions of this rank did not end {limit}"
    raise DeadlineExceeded(exchange.rank, f"rpc.shutdown: {text}")


def say_done(exchange: Exchange) -> None:
    """Tell all ranks that this one makes no calls any more."""
    for peer in exchange.peers.values():
        if peer.lost is None:
            exchange.post(peer.rank, Done())


def say_ended(exchange: Exchange) -> None:
    """Tell all ranks that this one closes now, and wait until that has left."""
    peers = [p for p in exchange.peers.values() if p.lost is None]
    for peer in peers:
        exchange.post(peer.rank, Ended())
    if exchange.failure is None:
        exchange.watch.wait(
            lambda: all(p.lost or not p.has_unsent() for p in peers), FLUSH_S
        )
