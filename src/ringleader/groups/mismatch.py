"""Explains why the header of a peer was not the expected one."""

from __future__ import annotations

from dataclasses import replace
from typing import Protocol

from ringleader.deadline import Deadline
from ringleader.engine.engine import HeaderMismatch
from ringleader.errors import CallMismatch, RingleaderError
from ringleader.transport.link import wait_ready
from ringleader.wire import header as wire

EXPLAIN_S = 0.5
"""Time that a peer has to send the call that it made."""


class Channel(Protocol):
    """Interface that explanations need from the control channel."""

    rank: int

    def ask(self, peers: list[int]) -> None:
        """Send our current header to all peers; those that differ answer."""
        ...

    def send_history(self, peer: int) -> None:
        """Send the headers of our last calls to ``peer``."""
        ...

    def compare(self, peer: int, theirs: bytes) -> None:
        """Raise CallMismatch if ``theirs`` differs from our call of that number."""
        ...

    def progress(self) -> None:
        """Move control frames; raise if one of them breaks the group."""
        ...

    def wanted(self) -> list[tuple[int, int]]:
        """Descriptors and events to wait for."""
        ...


def explain(found: HeaderMismatch, channel: Channel) -> RingleaderError:
    """Return the error that says best how the peer's call differs from ours.

    The bytes read may be from an earlier call of the peer, or empty: in shared memory
    its present call may use other slots. In these cases the peer is asked.
    """
    peer, rank = found.peer, channel.rank
    ours = wire.decode(found.expected, rank)
    try:
        if not any(found.theirs):
            channel.ask([peer])
            _await_answer(channel)
            text = f"made another call while rank {rank} called {ours}"
            return CallMismatch(peer, text)
        call = wire.decode(found.theirs, peer)
        if call.sequence != ours.sequence:
            channel.compare(peer, found.theirs)
            channel.ask([peer])
            _await_answer(channel)
        elif replace(call, history=ours.history) == ours:
            # The calls agree now but earlier ones did not: both sides send their
            # history and compare.
            channel.send_history(peer)
            _await_answer(channel)
    except RingleaderError as better:
        return better
    return call_mismatch(peer, call, rank, ours)


def _await_answer(channel: Channel) -> None:
    """Give the peer a moment to send its call, which raises a better error."""
    until = Deadline.after(EXPLAIN_S)
    while not until.is_over():
        channel.progress()
        wait_ready(channel.wanted(), until.left_s())


def is_same_call(ours: wire.Header, theirs: wire.Header) -> bool:
    """Whether two headers belong to one operation; counts of all_to_all may differ."""
    if ours.operation == "all_to_all":
        theirs = replace(theirs, count=ours.count)
    return ours == theirs


def call_mismatch(
    peer: int, theirs: wire.Header, rank: int, ours: wire.Header
) -> CallMismatch:
    """The error that shows both calls."""
    rule = "every rank of a group must make the same calls in the same order"
    if replace(theirs, history=ours.history) == ours:
        text = f"its calls before {theirs} were not those of rank {rank}; {rule}"
    else:
        text = f"called {theirs} while rank {rank} called {ours}; {rule}"
    return CallMismatch(peer, text)
