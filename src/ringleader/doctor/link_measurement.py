"""Measuring a link as agents do, and finding out why it cannot be measured.

The other side needs no knowledge of doctors: it is asked for a probe as by any member.
Figures are the best of two tries where the first one looks bad: a machine that is busy
must not be called a slow link.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from dataclasses import dataclass, field, replace

import msgspec

from ringleader.deadline import Deadline
from ringleader.doctor.facts import Measurement, Outcome, Pace, Place, Visit
from ringleader.doctor.probe_address import Failed, introduce, limit_segments
from ringleader.doctor.rules.link_speed import is_suspect, slower_way
from ringleader.errors import DeadlineExceeded, PeerError
from ringleader.ids import NodeId
from ringleader.node.peering.link_probe import Place as ProbePlace
from ringleader.node.peering.peer_connection import Greeting, Guest
from ringleader.node.protocol import framing
from ringleader.topology.link_profile import LinkProfile
from ringleader.topology.link_speed import measure_sending

PROBE = "probe"
TURN_S = 2.5
"""How long the other side may take until it has time for us."""
LIMIT_S = 2.0
"""For one measurement; 2 Mbit/s need one second."""
CONNECT_S = 1.5

_PLACE = msgspec.msgpack.Decoder(ProbePlace)
_ABORT = struct.pack("ii", 1, 0)
"""Closing says so at once, even when what was sent before got lost."""


@dataclass(slots=True)
class Surveyor:
    """Measures the links of this machine, one at a time: none disturbs another."""

    greeting: Greeting
    deadline: Deadline
    _busy: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def measure(self, visit: Visit) -> Measurement:
        """The link to a node that was reached."""
        if visit.node is None or visit.needs_small:
            return Measurement(Pace.SKIPPED)
        async with self._busy:
            first = await self._try(visit, is_small=False)
            if first.pace is Pace.STALLED:
                return await self._find_out_why(visit, first)
            if first.profile is not None and is_suspect(first.profile):
                return _better(first, await self._try(visit, is_small=False))
            return first

    async def _find_out_why(self, visit: Visit, first: Measurement) -> Measurement:
        """Whether large packets are lost: small ones pass, and large ones do not."""
        small = await self._try(visit, is_small=True)
        if small.pace is not Pace.MEASURED:
            return first
        again = await self._try(visit, is_small=False)
        if again.pace is Pace.MEASURED:
            return again
        return replace(small, needs_small=True)

    async def _try(self, visit: Visit, *, is_small: bool) -> Measurement:
        if self.deadline.left_s() < LIMIT_S / 2:
            return Measurement(Pace.SKIPPED)
        try:
            guest = await introduce(
                self.greeting, visit.place, PROBE, self.deadline, is_small=is_small
            )
        except Failed as exc:
            is_stalled = exc.outcome is Outcome.STALLED
            return Measurement(Pace.STALLED if is_stalled else Pace.SKIPPED)
        try:
            where = await self._place(guest)
            if where is None:
                return Measurement(Pace.SKIPPED)
            return await asyncio.to_thread(
                self._probe, where, guest.node, is_small=is_small
            )
        finally:
            guest.abort()

    async def _place(self, guest: Guest) -> Place | None:
        """Where the other side waits for us; None if it has no time for us."""
        try:
            async with asyncio.timeout(min(TURN_S, self.deadline.left_s())):
                body = await framing.read(
                    guest.reader, guest.node, framing.MAX_HELLO_BYTES
                )
            return guest.address[0], _PLACE.decode(body).port
        except (PeerError, TimeoutError, msgspec.DecodeError):
            return None

    def _probe(self, where: Place, node: NodeId, *, is_small: bool) -> Measurement:
        """In a thread of its own, with the blocking sockets that tensors use too."""
        limit = Deadline.after(min(LIMIT_S, max(0.1, self.deadline.left_s())))
        family = socket.AF_INET6 if ":" in where[0] else socket.AF_INET
        with socket.socket(family, socket.SOCK_STREAM) as raw:
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _ABORT)
            if is_small:
                limit_segments(raw)
            raw.settimeout(min(CONNECT_S, limit.left_s()))
            try:
                raw.connect(where)
            except TimeoutError:
                return Measurement(Pace.BLOCKED)
            except OSError:
                return Measurement(Pace.SKIPPED)
            try:
                return Measurement(Pace.MEASURED, self._measure(raw, node, limit))
            except (TimeoutError, DeadlineExceeded):
                return Measurement(Pace.STALLED)
            except (PeerError, OSError):
                return Measurement(Pace.SKIPPED)

    def _measure(
        self, raw: socket.socket, node: NodeId, limit: Deadline
    ) -> LinkProfile:
        ours = self.greeting.credentials
        raw.settimeout(max(0.01, limit.left_s()))
        raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with ours.client.wrap_socket(raw, server_hostname=ours.server_name()) as sock:
            ours.check_alpn(sock)
            ours.verify(sock.getpeercert(True), expect=node)
            return measure_sending(sock, limit, peer=node)


def _better(first: Measurement, second: Measurement) -> Measurement:
    """The faster of two, of which the second may have failed."""
    if first.profile is None or second.profile is None:
        return first
    is_faster = slower_way(second.profile) > slower_way(first.profile)
    return second if is_faster else first
