"""GroupMetrics: the observer that counts the calls, waits and bytes of one group.

It runs in the data path, so each event is a few additions to numbers of its own: only
the thread that runs the group writes them. They are added up when somebody looks.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable

import numpy as np

from ringleader.engine.arrays_by_address import Addresses
from ringleader.engine.call import Call
from ringleader.engine.engine import HeaderMismatch, Prepared
from ringleader.engine.observer import now_s
from ringleader.groups.handle import GroupHandle
from ringleader.groups.observation import observe_groups
from ringleader.metrics import catalog
from ringleader.metrics.catalog import CALL_BUCKETS_S
from ringleader.metrics.process_metrics import current
from ringleader.metrics.registry import Registry, Tally
from ringleader.metrics.snapshot import Distribution

RECENT = 1024
"""Durations that are kept before they are counted in buckets, all at once: that takes
60 ns each, and one at a time 250 ns of every call."""


class CallCounts:
    """What is counted for calls with the same operation, algorithm and codec.

    Only the thread that runs the group writes, and any thread may read.
    """

    __slots__ = ("_lock", "_older", "bytes", "failed", "recent_s")

    def __init__(self) -> None:
        self._older = Distribution((0,) * (len(CALL_BUCKETS_S) + 1), 0.0)
        self._lock = threading.Lock()
        """Held to move durations from the recent to the older ones, or to read both."""
        self.recent_s: list[float] = []
        self.bytes = 0
        self.failed = 0

    def times(self) -> Distribution:
        """The durations of all calls that ended well."""
        with self._lock:
            older, recent_s = self._older, self.recent_s.copy()
        return older.plus(_in_buckets(recent_s))

    def fold(self) -> None:
        """Count the recent durations in buckets."""
        with self._lock:
            self._older = self._older.plus(_in_buckets(self.recent_s))
            self.recent_s.clear()


def _in_buckets(durations_s: list[float]) -> Distribution:
    places = np.searchsorted(CALL_BUCKETS_S, durations_s)
    counts = np.bincount(places, minlength=len(CALL_BUCKETS_S) + 1).tolist()
    return Distribution(tuple(counts), sum(durations_s))


class GroupMetrics:
    """See Observer."""

    def __init__(self, handle: GroupHandle, registry: Registry) -> None:
        self._handle: GroupHandle | None = handle
        self._registry = registry
        self._process = os.getpid()
        self._names = [str(rank) for rank in handle.world_ranks]
        self._calls: dict[tuple[str, str, str], CallCounts] = {}
        self._wait_s = [0.0] * len(self._names)
        self._num_waits = [0] * len(self._names)
        self._codecs: dict[tuple[str, str], list[float]] = {}
        """(codec, step) -> seconds, raw bytes, coded bytes."""
        self._is_broken = False

    # -- Observer ------------------------------------------------------------------

    def watch(self, call: Call, run: Prepared) -> Prepared:
        """See Observer. The fast path of ``ended``, for calls that repeat."""
        counts, num_bytes = self._counts(call), call.num_bytes or _pair_bytes(call)
        recent_s, keep = counts.recent_s, counts.recent_s.append

        def counted(addresses: Addresses) -> None:
            since_s = now_s()
            try:
                run(addresses)
            except BaseException as exc:
                self.ended(call, since_s, now_s(), exc)
                raise
            keep(now_s() - since_s)
            counts.bytes += num_bytes
            if len(recent_s) == RECENT:
                counts.fold()

        return counted

    def began(self, call: Call, at_s: float) -> None:
        """See Observer."""

    def waited(self, peer: int, since_s: float, until_s: float) -> None:
        """See Observer."""
        self._wait_s[peer] += until_s - since_s
        self._num_waits[peer] += 1

    def coded(
        self,
        step: str,
        codec: str,
        raw_bytes: int,
        coded_bytes: int,
        since_s: float,
        until_s: float,
    ) -> None:
        """See Observer."""
        sums = self._codecs.get((codec, step))
        if sums is None:
            sums = self._codecs[codec, step] = [0.0, 0.0, 0.0]
        sums[0] += until_s - since_s
        sums[1] += raw_bytes
        sums[2] += coded_bytes

    def ended(
        self, call: Call, since_s: float, until_s: float, error: BaseException | None
    ) -> None:
        """See Observer."""
        counts = self._counts(call)
        counts.bytes += call.num_bytes or _pair_bytes(call)
        if error is None:
            counts.recent_s.append(until_s - since_s)
            if len(counts.recent_s) == RECENT:
                counts.fold()
        else:
            counts.failed += 1
            self._note_broken(error)

    def _counts(self, call: Call) -> CallCounts:
        key = (call.operation, call.algorithm, call.codec_name)
        counts = self._calls.get(key)
        if counts is None:
            counts = self._calls[key] = CallCounts()
        return counts

    def closed(self) -> None:
        """See Observer. A forked child leaves the numbers to its parent."""
        if self._handle is not None and self._process == os.getpid():
            self._registry.retire(self.collect)
            current.publisher.closed()
        self._handle = None

    def is_open(self) -> bool:
        """Whether the group has not been closed."""
        return self._handle is not None

    def _note_broken(self, error: BaseException) -> None:
        if not self._is_broken:
            self._is_broken = True
            is_mismatch = isinstance(error, HeaderMismatch)
            name = "CallMismatch" if is_mismatch else type(error).__name__
            self._registry.add(catalog.GROUP_FAILURES, 1, name)

    # -- reading -------------------------------------------------------------------

    def collect(self, tally: Tally) -> None:
        """Add everything counted so far; from any thread."""
        for key, counts in list(self._calls.items()):
            times = counts.times()
            tally.merge(catalog.CALL_SECONDS, times, *key)
            tally.add(catalog.CALL_BYTES, counts.bytes, *key)
            tally.add(catalog.CALLS, times.count, *key, "ok")
            tally.add(catalog.CALLS, counts.failed, *key, "failed")
        for name, wait_s, number in zip(
            self._names, self._wait_s, self._num_waits, strict=True
        ):
            if number:
                tally.add(catalog.WAIT_SECONDS, wait_s, name)
                tally.add(catalog.WAITS, number, name)
        for labels, (seconds, raw_bytes, coded_bytes) in list(self._codecs.items()):
            tally.add(catalog.CODEC_SECONDS, seconds, *labels)
            tally.add(catalog.CODEC_RAW_BYTES, raw_bytes, *labels)
            tally.add(catalog.CODEC_CODED_BYTES, coded_bytes, *labels)
        if self._handle is not None:
            tally.add(catalog.GROUPS, 1)
            self._collect_links(self._handle, tally)

    def _collect_links(self, handle: GroupHandle, tally: Tally) -> None:
        for peer, link in list(handle.mesh.bulk.items()):
            labels = (self._names[peer], link.kind, "tensors")
            tally.add(catalog.SENT_BYTES, link.sent_bytes, *labels)
            tally.add(catalog.RECEIVED_BYTES, link.received_bytes, *labels)
        kinds = {peer: link.kind for peer, link in list(handle.mesh.bulk.items())}
        for stream in handle.control.streams():
            kind = kinds.get(stream.peer, "tcp")
            labels = (self._names[stream.peer], _control_kind(kind), "control")
            tally.add(catalog.SENT_BYTES, stream.sent_bytes, *labels)
            tally.add(catalog.RECEIVED_BYTES, stream.received_bytes, *labels)


def _control_kind(kind: str) -> str:
    """The kind of a control stream: a socket also where memory is shared."""
    return "tcp" if kind == "shm" else kind


def _pair_bytes(call: Call) -> int:
    """Bytes that an all_to_all sends from this rank: only the pairs know them."""
    elements = sum(sent for sent, _ in call.pairs.values())
    return elements * call.dtype.itemsize


def measure_if_asked() -> None:
    """Turn metrics on if the environment says so; every group that opens asks."""
    current.follow_environment()


class _Switch:
    """Observes all groups of this process while metrics are on."""

    def __init__(self) -> None:
        self._made: list[GroupMetrics] = []
        self._stop: Callable[[], None] | None = None

    def __call__(self, is_on: bool) -> None:
        if is_on:
            self._stop = observe_groups(self._make)
        elif self._stop is not None:
            self._stop()
            for each in self._made:
                each.closed()
            self._made.clear()

    def _make(self, handle: GroupHandle) -> GroupMetrics:
        made = GroupMetrics(handle, current.registry)
        current.registry.add_source(made.collect)
        current.publisher.opened(handle.world_ranks[handle.rank])
        self._made = [each for each in self._made if each.is_open()]
        self._made.append(made)
        return made


current.on_switch(_Switch())
