"""The ring of events, the batches that travel, and what rank 0 keeps of them."""

from __future__ import annotations

import json
import os
import random
import threading
import zlib
from contextlib import suppress
from datetime import timedelta
from pathlib import Path

import pytest
from torch._C._distributed_c10d import TCPStore

from ringleader.deadline import Deadline
from ringleader.errors import ConfigError, ProtocolError
from ringleader.settings.tracing import trace_environment
from ringleader.tracing import batch as batches
from ringleader.tracing.analysis.clock import Offset
from ringleader.tracing.analysis.events import (
    Blocked,
    Encode,
    Event,
    Operation,
    Span,
    Step,
    Wait,
)
from ringleader.tracing.batch import Batch
from ringleader.tracing.collector import Collector
from ringleader.tracing.recorder import BLOCKED, STEP, Recorder
from ringleader.tracing.store_channel import StoreChannel
from ringleader.tracing.trace_file import next_free

EVENTS: list[Event] = [
    Operation(5, 9, "0a", 3, "all_reduce", "ring", "int8", 4096, 2),
    Wait(6, 7, "0a", 3, 1),
    Blocked(5, 9),
    Encode(4, 10),
    Step(0, 12, 1),
    Span(10, 12, "optimizer"),
]


def full_batch() -> Batch:
    return Batch(
        machine="Küche",
        link_kind="Wi-Fi",
        num_dropped=2,
        is_last=True,
        offsets=[Offset(1, -5, 2)],
        links={(0, 1): 1e6},
        events=EVENTS,
    )


def test_a_full_ring_forgets_the_oldest_events_and_counts_them() -> None:
    recorder = Recorder(3)
    for i in range(5):
        recorder.record(BLOCKED, i, i + 1)
    assert recorder.num_dropped == 2
    assert recorder.take(2) == [
        Blocked(2_000_000_000, 3_000_000_000),
        Blocked(3_000_000_000, 4_000_000_000),
    ]
    recorder.record(STEP, 7, 8, 1)
    assert [type(each) for each in recorder.take(9)] == [Blocked, Step]
    assert recorder.take(9) == []
    assert recorder.num_dropped == 2


def test_a_batch_arrives_as_it_was_sent() -> None:
    assert Batch.decode(full_batch().encode(), 1) == full_batch()


def content() -> list[object]:
    found: list[object] = json.loads(zlib.decompress(full_batch().encode()))
    return found


@pytest.mark.parametrize(
    ("index", "value"),
    [
        (0, 7),
        (0, "x" * 201),
        (2, -1),
        (3, 1),
        (4, [[1, 2]]),
        (4, [[1, 2, 1 << 70]]),
        (4, [[0, 0, 0]] * 65),
        (5, [[0, 1, "fast"]]),
        (5, [[0, 1, float("nan")]]),
        (5, [[0, 1, 1.0]] * 4097),
        (6, {}),
        (6, [[9, 0, 1]]),
        (6, [[2, 0, -1]]),
        (6, [[2, 0, 1, 1]]),
        (6, [[2, 0.5, 1]]),
        (6, [[True, 0, 1]]),
        (6, [[5, 0, 1, "x" * 201]]),
        (6, [[2, 0, 1]] * 4097),
    ],
)
def test_a_batch_that_nobody_would_send_is_refused(index: int, value: object) -> None:
    changed = content()
    changed[index] = value
    with pytest.raises(ProtocolError, match="rank 3"):
        Batch.decode(zlib.compress(json.dumps(changed).encode()), 3)


def test_bytes_that_are_no_batch_are_refused_before_they_take_memory() -> None:
    bomb = zlib.compress(b" " * (batches.MAX_JSON_BYTES + 1))
    deep = zlib.compress(b"[" * 100_000)
    whole = full_batch().encode()
    cut = [whole[:n] for n in range(len(whole))]
    for data in (bomb, deep, b"\0" * (batches.MAX_BYTES + 1), *cut):
        with pytest.raises(ProtocolError):
            Batch.decode(data, 1)
    chance = random.Random(1)
    for _ in range(500):
        changed = bytearray(whole)
        changed[chance.randrange(len(changed))] ^= 1 << chance.randrange(8)
        with suppress(ProtocolError):
            Batch.decode(bytes(changed), 1)


def test_rank_0_keeps_the_last_events_of_each_rank_on_its_own_clock() -> None:
    collector = Collector(2, limit=3)
    assert collector.missing() == {0, 1}
    for i in range(3):
        collector.add(1, Batch(machine="b", events=[Blocked(10 * i, 10 * i + 1)] * 2))
    last = Batch(machine="b", num_dropped=4, is_last=True, offsets=[Offset(0, 100, 5)])
    collector.add(1, last)
    assert collector.missing() == {0}
    trace = collector.recording().ranks[1]
    assert trace.blocked == [Blocked(110, 111), Blocked(120, 121), Blocked(120, 121)]
    assert trace.num_dropped == 4 + 3
    assert trace.is_complete
    assert trace.clock_error_ns == 5
    assert not collector.recording().ranks[0].is_complete


def test_batches_and_the_time_travel_through_a_store() -> None:
    store = TCPStore(
        "127.0.0.1",
        0,
        is_master=True,
        timeout=timedelta(seconds=60),
        wait_for_workers=False,
        use_libuv=False,  # which keeps a pipe until the process ends
    )
    first, second = (StoreChannel(store, "t", rank, 2) for rank in range(2))
    found: list[Offset | None] = []
    deadline = Deadline.after(60)
    asking = threading.Thread(
        target=lambda: found.append(second.ask_clock(Deadline.after(60)))
    )
    asking.start()
    while asking.is_alive():
        assert not deadline.is_over()
        assert first.receive() == []
    asking.join()
    (offset,) = found
    assert offset is not None
    assert abs(offset.ahead_ns) <= offset.error_ns, "it is one clock"
    for i in range(5):
        assert second.has_room() == (i < 4)
        second.send(Batch(machine=f"m{i}"))
    assert not second.has_room(), "rank 0 takes nothing out"
    assert not second.wait_until_taken(Deadline.after(0))
    assert [(r, b.machine) for r, b in first.receive()] == [
        (1, f"m{i}") for i in range(5)
    ]
    assert second.has_room()
    assert second.wait_until_taken(Deadline.after(60))
    assert second.ask_clock(Deadline.after(0)) is None, "nobody answers"


def test_the_trace_of_a_later_round_does_not_replace_an_earlier_one(
    tmp_path: Path,
) -> None:
    path = tmp_path / "out.json"
    assert next_free(path, 1000.0) == path
    path.write_text("old")
    os.utime(path, (999.0, 999.0))
    assert next_free(path, 1000.0) == path, "of an earlier run"
    os.utime(path, (1001.0, 1001.0))
    assert next_free(path, 1000.0) == tmp_path / "out-2.json"


def test_a_trace_needs_a_folder_that_exists(tmp_path: Path) -> None:
    assert trace_environment(str(tmp_path / "o.json"))["RINGLEADER_TRACE"]
    for path in (tmp_path, tmp_path / "missing" / "o.json"):
        with pytest.raises(ConfigError, match="folder that exists"):
            trace_environment(str(path))
