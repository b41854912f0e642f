"""The service ``machine``: load of this machine and numbers of its workers.

An agent with an open dashboard follows the service of every other member, over the
mutual TLS of agents. Nobody who looks costs nothing.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from ringleader.dashboard.job_rows import RankTraffic
from ringleader.dashboard.log import MAX_NAME, MAX_NUMBERS
from ringleader.dashboard.number_files import (
    MAX_POINTS,
    MAX_RANKS,
    NumberFolder,
    NumberPoint,
)
from ringleader.errors import PeerLost, ProtocolError
from ringleader.monitoring.number_folders import find_number_folders
from ringleader.monitoring.worker_traffic import TrafficReader
from ringleader.node.agent.service_stream import ServiceStream
from ringleader.node.protocol.node_state import JobName
from ringleader.topology.machine_load import MachineLoad, measure_load

FEED_EVERY_S = 2.0
MAX_FEED_BYTES = 1 << 20
MAX_FEED_POINTS = 2000
"""Points in one message, of all ranks together."""
WRITE_S = 20.0

Number = Annotated[float, Meta(ge=-1e300, le=1e300)]
Rank = Annotated[int, Meta(ge=0, le=999_999)]
NumberName = Annotated[str, Meta(max_length=MAX_NAME)]


class FeedPoint(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One line of ``ringleader.log``."""

    time_s: Number
    step: Annotated[int, Meta(ge=-(1 << 53), le=1 << 53)]
    step_s: Number | None
    values: Annotated[dict[NumberName, Number | None], Meta(max_length=MAX_NUMBERS)]

    def point(self) -> NumberPoint:
        """Return it as the dashboard holds it."""
        return NumberPoint(self.time_s, self.step, self.step_s, self.values)


class RankFeed(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The numbers that one rank has logged since the last message."""

    job: JobName
    rank: Rank
    points: Annotated[list[FeedPoint], Meta(max_length=MAX_POINTS)]


class TrafficFeed(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The traffic of one rank; see ``RankTraffic``."""

    job: JobName
    rank: Rank
    sent_bytes_per_s: Annotated[float, Meta(ge=0, le=1e15)]
    waits_for: Annotated[int, Meta(ge=-1, le=999_999)]
    wait_share: Annotated[float, Meta(ge=0, le=1)]
    compression: Annotated[float, Meta(ge=0, le=1e9)]

    def traffic(self) -> RankTraffic:
        """Return it as the dashboard holds it."""
        return RankTraffic(
            self.rank,
            self.sent_bytes_per_s,
            self.waits_for,
            self.wait_share,
            self.compression,
        )


class MachineFeed(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One message of the service."""

    load: MachineLoad
    ranks: Annotated[list[RankFeed], Meta(max_length=16 * MAX_RANKS)] = []
    traffic: Annotated[list[TrafficFeed], Meta(max_length=16 * MAX_RANKS)] = []


_DECODER = msgspec.msgpack.Decoder(MachineFeed)


def decode_feed(body: bytes, who: str) -> MachineFeed:
    """Decode a message of another agent; raises ``ProtocolError``."""
    try:
        return _DECODER.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as exc:
        raise ProtocolError(
            who, f"sent an invalid load of its machine ({exc})"
        ) from exc


class FeedReader:
    """Collects what is new on this machine since the last call."""

    def __init__(self, home: Path) -> None:
        self._home = home
        self._traffic = TrafficReader(home)
        self._is_first = True
        self._readers: dict[Path, NumberFolder] = {}

    def read(self) -> MachineFeed:
        """Return the load and the new points; takes a few milliseconds."""
        folders = find_number_folders(self._home)
        known = {path for paths in folders.values() for path in paths}
        self._readers = {p: r for p, r in self._readers.items() if p in known}
        ranks = []
        room = MAX_FEED_POINTS
        for job, paths in folders.items():
            for path in paths:
                reader = self._readers.setdefault(path, NumberFolder(path))
                for rank, points in reader.read().items():
                    kept = points[-room:] if room > 0 else []
                    room -= len(kept)
                    ranks.append(RankFeed(job, rank, [_feed_point(p) for p in kept]))
        load = measure_load(is_first=self._is_first)
        self._is_first = False
        return MachineFeed(load, ranks, self._read_traffic(folders))

    def _read_traffic(self, folders: dict[str, list[Path]]) -> list[TrafficFeed]:
        found = self._traffic.read(folders)[: 16 * MAX_RANKS]
        return [
            TrafficFeed(
                job,
                each.rank,
                each.sent_bytes_per_s,
                each.waits_for,
                each.wait_share,
                each.compression,
            )
            for job, each in found
        ]


def _feed_point(point: NumberPoint) -> FeedPoint:
    return FeedPoint(point.time_s, point.step, point.step_s, point.values)


async def send_feed(stream: ServiceStream, home: Path) -> None:
    """Send the load and what is new, again and again, until the client closes."""
    reader = FeedReader(home)
    end = asyncio.create_task(stream.reader.read(1))  # clients say nothing more
    try:
        while not end.done():
            feed = await asyncio.to_thread(reader.read)
            async with asyncio.timeout(WRITE_S):
                await stream.send(feed)
            await asyncio.wait([end], timeout=FEED_EVERY_S)
    except TimeoutError as exc:
        raise PeerLost(stream.who, "does not read the load it asked for") from exc
    finally:
        end.cancel()
        await asyncio.gather(end, return_exceptions=True)
