"""``GroupRecorder``: records the collective calls of one group and their waits."""

from __future__ import annotations

import threading
import weakref
from struct import Struct

from ringleader.engine.call import Call
from ringleader.engine.engine import Prepared
from ringleader.engine.observer import observed
from ringleader.groups.handle import GroupHandle
from ringleader.tracing.analysis.events import UNKNOWN_RANK
from ringleader.tracing.recorder import BLOCKED, OPERATION, WAIT, Recorder
from ringleader.wire.header import SEQUENCE_OFFSET

MERGE_S = 2e-4
"""Waits with less than this between them are one: bytes trickle in."""
MAX_WAITS = 256
"""Waits that are kept of one call; the last one is extended beyond that."""
_GROUP_AND_SEQUENCE = Struct("<QQ")
_GROUP_OFFSET = SEQUENCE_OFFSET - 8
ENGINE_THREADS = "ringleader-"
"""How the names of threads begin that are not the program's."""


def is_program_thread() -> bool:
    """Return whether this thread belongs to the program that trains."""
    return not threading.current_thread().name.startswith(ENGINE_THREADS)


class GroupRecorder:
    """An observer of one group; see engine/observer.py."""

    def __init__(self, handle: GroupHandle, recorder: Recorder) -> None:
        self._handle = weakref.ref(handle)
        self._control = handle.control
        self._recorder = recorder
        self._waits: list[_MergedWait] = []
        self._encode_s = 0.0
        self._may_merge = False

    def watch(self, call: Call, run: Prepared) -> Prepared:
        """See Observer."""
        return observed(self, call, run)

    def began(self, _call: Call, _at_s: float) -> None:
        """See Observer."""
        self._waits, self._encode_s, self._may_merge = [], 0.0, False

    def waited(self, peer: int, since_s: float, until_s: float) -> None:
        """See Observer."""
        waits = self._waits
        is_near = self._may_merge and since_s - waits[-1].until_s < MERGE_S
        if not is_near and len(waits) < MAX_WAITS:
            waits.append(_MergedWait(since_s))
        waits[-1].add(peer, since_s, until_s)
        self._may_merge = True

    def coded(
        self,
        _step: str,
        _codec: str,
        _raw_bytes: int,
        _coded_bytes: int,
        since_s: float,
        until_s: float,
    ) -> None:
        """See Observer."""
        self._encode_s += until_s - since_s
        self._may_merge = False

    def ended(
        self, call: Call, since_s: float, until_s: float, _error: BaseException | None
    ) -> None:
        """See Observer."""
        record = self._recorder.record
        number, sequence = _GROUP_AND_SEQUENCE.unpack_from(
            self._control.current, _GROUP_OFFSET
        )
        group = f"{number:016x}"
        for each in self._waits:
            peer = self._rank(each.peer())
            record(WAIT, each.since_s, each.until_s, group, sequence, peer)
        what = call.operation, call.algorithm, call.codec_name, call.num_bytes
        encode_ns = int(self._encode_s * 1e9)
        record(OPERATION, since_s, until_s, group, sequence, *what, encode_ns)
        if is_program_thread():
            record(BLOCKED, since_s, until_s)
        self._waits = []

    def _rank(self, peer: int) -> int:
        """Return the rank in the program; members of a view have other numbers."""
        handle = self._handle()
        is_known = handle is not None and not handle.is_view
        return handle.world_ranks[peer] if handle and is_known else UNKNOWN_RANK

    def closed(self) -> None:
        """See Observer."""


class _MergedWait:
    """Waits that followed each other at once."""

    __slots__ = ("_peers", "since_s", "until_s")

    def __init__(self, since_s: float) -> None:
        self.since_s = self.until_s = since_s
        self._peers: dict[int, float] = {}

    def add(self, peer: int, since_s: float, until_s: float) -> None:
        self.until_s = until_s
        self._peers[peer] = self._peers.get(peer, 0.0) + until_s - since_s

    def peer(self) -> int:
        """Return the peer that was waited for longest."""
        return max(self._peers, key=lambda each: self._peers[each])
