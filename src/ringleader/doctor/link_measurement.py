"""``LinkMeasurer``: measures links as agents do and finds out why it cannot.

The other side is asked for a link probe as by any member. If the first result looks
bad, the better of two is taken: a busy machine must not be reported as a slow link.
"""

from __future__ import annotations

import asyncio
import socket
import struct
import time
from dataclasses import dataclass, field, replace

from ringleader.deadline import Deadline
from ringleader.doctor.facts import (
    Address,
    DialOutcome,
    DialResult,
    LinkMeasurement,
    LinkOutcome,
)
from ringleader.doctor.probe_address import DialFailed, limit_segments, open_connection
from ringleader.doctor.rules.link_speed import is_suspect, slower_direction
from ringleader.errors import DeadlineExceeded, PeerError
from ringleader.ids import NodeId
from ringleader.node.peering import link_probe
from ringleader.node.peering.peer_connection import HandshakeContext, PeerConnection
from ringleader.node.protocol import framing
from ringleader.node.protocol.hello import MAX_HELLO_BYTES, Purpose
from ringleader.node.protocol.probe_port import decode_probe_port

TURN_S = 2.5
"""How long the other side may take until it is free for a probe."""
LIMIT_S = 2.0
"""For one measurement; 2 Mbit/s need one second."""
ROUND_TRIPS, FAR_S = 40, 5.0
"""A far machine gets so many round trips more, but at most so many seconds."""
CONNECT_S = 1.5

_ABORT = struct.pack("ii", 1, 0)
"""SO_LINGER of zero: closing resets the connection, even if sent data got lost."""


@dataclass(slots=True)
class LinkMeasurer:
    """Measures the links of this machine, one at a time: none disturbs another."""

    handshake: HandshakeContext
    deadline: Deadline
    _busy: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def measure(self, dial: DialResult) -> LinkMeasurement:
        """Measure the link to a node that was reached."""
        if dial.node is None or dial.needs_small_segments:
            return LinkMeasurement(LinkOutcome.SKIPPED)
        async with self._busy:
            first = await self._try(dial, small_segments=False)
            if first.outcome is LinkOutcome.STALLED:
                return await self._find_cause(dial, first)
            if first.profile is not None and is_suspect(first.profile):
                return _better(first, await self._try(dial, small_segments=False))
            return first

    async def _find_cause(
        self, dial: DialResult, first: LinkMeasurement
    ) -> LinkMeasurement:
        """Find out whether only large packets are lost."""
        small = await self._try(dial, small_segments=True)
        if small.outcome is not LinkOutcome.MEASURED:
            return first
        again = await self._try(dial, small_segments=False)
        if again.outcome is LinkOutcome.MEASURED:
            return again
        return replace(small, needs_small_segments=True)

    async def _try(self, dial: DialResult, *, small_segments: bool) -> LinkMeasurement:
        if self.deadline.left_s() < LIMIT_S / 2:
            return _without_result(LinkOutcome.SKIPPED, "no time was left")
        try:
            connection = await open_connection(
                self.handshake,
                dial.address,
                Purpose.PROBE,
                self.deadline,
                small_segments=small_segments,
            )
        except DialFailed as exc:
            outcome = _OF_DIAL.get(exc.outcome, LinkOutcome.FAILED)
            return _without_result(outcome, f"to ask for it: {exc.text or exc.outcome}")
        try:
            address = await self._probe_address(connection)
            return await asyncio.to_thread(
                self._probe, address, connection.node, small_segments=small_segments
            )
        except TimeoutError:
            text = f"it had no time for that within {TURN_S:g} s"
            return _without_result(LinkOutcome.SKIPPED, text)
        except PeerError as exc:
            return _without_result(LinkOutcome.FAILED, f"to agree on a port: {exc}")
        finally:
            connection.abort()

    async def _probe_address(self, connection: PeerConnection) -> Address:
        """Return where the other side waits for the probe; TimeoutError: it is busy."""
        async with asyncio.timeout(min(TURN_S, self.deadline.left_s())):
            body = await framing.read(
                connection.reader, connection.node, MAX_HELLO_BYTES
            )
        port = decode_probe_port(body, connection.node).port
        return connection.address[0], port

    def _probe(
        self, address: Address, node: NodeId, *, small_segments: bool
    ) -> LinkMeasurement:
        """Measure in a thread, which may wait for the network."""
        left_s = max(0.1, self.deadline.left_s())
        family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        with socket.socket(family, socket.SOCK_STREAM) as raw:
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _ABORT)
            if small_segments:
                limit_segments(raw)
            raw.settimeout(min(CONNECT_S, left_s))
            started_s = time.perf_counter()
            try:
                raw.connect(address)
            except TimeoutError:
                return LinkMeasurement(LinkOutcome.BLOCKED)
            except OSError as exc:
                text = f"to connect to its port {address[1]}: {exc}"
                return _without_result(LinkOutcome.FAILED, text)
            connect_s = time.perf_counter() - started_s
            patience_s = LIMIT_S + min(FAR_S, ROUND_TRIPS * connect_s)
            limit = Deadline.after(min(patience_s, left_s) - connect_s)
            try:
                ours = self.handshake.credentials
                profile = link_probe.measure(raw, ours, node, limit, is_server=False)
            except (TimeoutError, DeadlineExceeded):
                return LinkMeasurement(LinkOutcome.STALLED)
            except (PeerError, OSError) as exc:
                return _without_result(LinkOutcome.FAILED, f"to measure: {exc}")
            return LinkMeasurement(LinkOutcome.MEASURED, profile)


_OF_DIAL = {
    DialOutcome.STALLED: LinkOutcome.STALLED,
    DialOutcome.NO_TIME: LinkOutcome.SKIPPED,
}


def _without_result(outcome: LinkOutcome, text: str) -> LinkMeasurement:
    return LinkMeasurement(outcome, text=text)


def _better(first: LinkMeasurement, second: LinkMeasurement) -> LinkMeasurement:
    """Return the faster of two measurements; the second may have failed."""
    if first.profile is None or second.profile is None:
        return first
    is_faster = slower_direction(second.profile) > slower_direction(first.profile)
    return second if is_faster else first
