"""Metrics of groups: fed by real calls, published and ended with the group."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
import torch

import ringleader
from ringleader.errors import ConfigError, GroupAborted
from ringleader.groups.group import Group
from ringleader.groups.group_metrics import RECENT
from ringleader.metrics.process_metrics import current
from ringleader.metrics.snapshot import Snapshot
from ringleader.metrics.worker_files import STALE_S, read_files, write_file
from ringleader.testing.threaded_world import run_threads, world

BIG = 1 << 18
"""Elements of 1 MiB."""
PATIENCE_S = 60.0


@pytest.fixture(autouse=True)
def measuring() -> Iterator[None]:
    """Metrics that are on and begin at 0; off again afterwards."""
    ringleader.metrics.reset()
    ringleader.metrics.enable()
    yield
    ringleader.metrics.set_collector(None)
    current.publisher.publish_to(None)
    ringleader.metrics.disable()


def all_reduce(groups: list[Group], count: int, times: int = 1) -> None:
    def work(group: Group) -> None:
        for _ in range(times):
            group.all_reduce(torch.ones(count))

    run_threads([partial(work, group) for group in groups])


def until(is_true: Callable[[], bool]) -> None:
    end_s = time.monotonic() + PATIENCE_S
    while not is_true():
        assert time.monotonic() < end_s, "it did not happen"
        time.sleep(0.01)


def threads() -> list[str]:
    names = [thread.name for thread in threading.enumerate()]
    return [name for name in names if name == "ringleader-metrics"]


@pytest.mark.parametrize("transport", ["memory", "tcp", "shm"])
def test_calls_bytes_and_waits_are_counted(transport: str) -> None:
    with world(2, transport) as groups:
        ringleader.metrics.reset()  # forming measures links
        all_reduce(groups, BIG, 3)
        run_threads([group.barrier for group in groups])
        seen = ringleader.metrics.snapshot()
        algorithm = groups[0].choice("all_reduce", 4 * BIG)[0]
    named = {"operation": "all_reduce", "algorithm": algorithm, "codec": "none"}
    calls = partial(seen.value, "ringleader_collective_calls_total")
    assert calls(**named, outcome="ok") == 6  # both ranks are in this process
    assert calls(operation="barrier") == 2
    assert calls(outcome="failed") == 0
    assert seen.value("ringleader_collective_bytes_total", **named) == 6 * 4 * BIG
    times = seen.distribution("ringleader_collective_seconds", **named)
    assert times.count == 6
    assert times.sum > 0
    assert seen.value("ringleader_groups") == 2
    waited_s = seen.value("ringleader_collective_wait_seconds_total")
    assert 0 <= waited_s <= seen.distribution("ringleader_collective_seconds").sum
    sent = seen.value("ringleader_link_sent_bytes_total", stream="tensors")
    received = seen.value("ringleader_link_received_bytes_total", stream="tensors")
    assert sent == received
    # Two ranks exchange halves twice: 1 MiB per rank and call, and headers. The engine
    # for shared memory uses no links.
    assert sent == 0 if transport == "shm" else 6 << 20 < sent < (6 << 20) + 4096


def test_every_call_is_counted_once_while_others_read() -> None:
    """Durations are moved into buckets in batches; a reader sees each of them once."""
    name, times = "ringleader_collective_seconds", RECENT + 1
    seen: list[float] = []
    with world(2) as groups:
        ringleader.metrics.reset()
        calling = threading.Thread(target=all_reduce, args=(groups, 1, times))
        calling.start()
        while calling.is_alive():
            seen.append(ringleader.metrics.snapshot().value(name))
            calling.join(0.005)
        after = ringleader.metrics.snapshot()
    assert after.value(name) == 2 * times
    assert after.value("ringleader_collective_bytes_total") == 2 * times * 4
    assert seen == sorted(seen), "nothing that was counted vanishes"
    assert all(each <= 2 * times for each in seen)


def test_all_to_all_counts_what_this_rank_sends() -> None:
    with world(2) as groups:

        def work(group: Group) -> None:
            group.all_to_all(torch.empty(10), torch.ones(10))

        run_threads([partial(work, group) for group in groups])
        seen = ringleader.metrics.snapshot()
    named = {"operation": "all_to_all"}
    assert seen.value("ringleader_collective_bytes_total", **named) == 2 * 40


def test_values_stay_when_a_group_closes() -> None:
    with world(2) as groups:
        all_reduce(groups, BIG)
        before = ringleader.metrics.snapshot()
    after = ringleader.metrics.snapshot()
    for name in ("ringleader_collective_calls_total", "ringleader_collective_seconds"):
        assert after.value(name) == before.value(name) > 0
    sent = partial(Snapshot.value, name="ringleader_link_sent_bytes_total")
    assert sent(after, stream="tensors") == sent(before, stream="tensors") > 0
    assert sent(after, stream="control") > 0, "the goodbyes"
    assert after.value("ringleader_groups") == 0


def test_a_closed_group_is_not_measured_again() -> None:
    """Also if somebody keeps it, or the garbage of cycles was not collected yet."""
    with world(2) as groups:
        all_reduce(groups, 4)
    ringleader.metrics.disable()
    ringleader.metrics.enable()
    assert ringleader.metrics.snapshot().value("ringleader_groups") == 0
    assert threads() == []


def test_a_codec_is_counted_with_its_ratio() -> None:
    with world(2) as groups:

        def work(group: Group) -> None:
            group.all_reduce(torch.ones(BIG), codec="int8")

        run_threads([partial(work, group) for group in groups])
        seen = ringleader.metrics.snapshot()
    assert seen.value("ringleader_collective_calls_total", codec="int8") == 2
    steps = {"codec": "int8", "step": "encode"}
    raw = seen.value("ringleader_codec_raw_bytes_total", **steps)
    assert raw == 2 * 4 * BIG
    assert 3.9 < raw / seen.value("ringleader_codec_coded_bytes_total", **steps) < 4
    assert seen.value("ringleader_codec_seconds_total", **steps) > 0


@pytest.mark.parametrize(
    ("scheme", "ratio"),
    [("int8", 0.251), ("topk:0.01", 0.02), ("powersgd:2", 0.02), ("fp16", 0.5)],
)
def test_compression_is_counted_with_its_ratio(scheme: str, ratio: float) -> None:
    with world(2) as groups:

        def work(group: Group) -> None:
            compressor = ringleader.compression.compressor(scheme)
            compressor.average(group, {"weight": torch.randn(512, 512)})

        run_threads([partial(work, group) for group in groups])
        seen = ringleader.metrics.snapshot()
    raw = seen.value("ringleader_compression_raw_bytes_total", scheme=scheme)
    assert raw == 2 * 4 * 512 * 512
    sent = seen.value("ringleader_compression_sent_bytes_total", scheme=scheme)
    assert 0 < sent / raw <= ratio
    assert seen.value("ringleader_compression_seconds_total", scheme=scheme) > 0


def test_a_failure_is_counted_once_per_group() -> None:
    with world(2) as groups:
        groups[1].abort("enough")
        for _ in range(2):
            with pytest.raises(GroupAborted):
                groups[0].all_reduce(torch.ones(BIG))
        seen = ringleader.metrics.snapshot()
    assert seen.value("ringleader_collective_calls_total", outcome="failed") == 1
    assert seen.value("ringleader_group_failures_total", error="GroupAborted") == 1


def test_nothing_is_counted_while_metrics_are_off() -> None:
    ringleader.metrics.disable()
    with world(2) as groups:
        all_reduce(groups, 4)
        assert ringleader.metrics.snapshot().value("ringleader_groups") == 0
        ringleader.metrics.enable()  # while the groups are open
        all_reduce(groups, 4)
        ringleader.metrics.disable()
        all_reduce(groups, 4)
    seen = ringleader.metrics.snapshot()
    assert seen.value("ringleader_collective_calls_total") == 2


def test_a_collector_gets_snapshots_until_the_last_group_closes() -> None:
    got: list[Snapshot] = []
    called = threading.Event()

    def collect(snapshot: Snapshot) -> None:
        got.append(snapshot)
        called.set()

    ringleader.metrics.set_collector(collect, every_s=3600)
    assert threads() == []
    with world(2) as groups:
        assert called.wait(PATIENCE_S)
        assert threads() == ["ringleader-metrics"]
        all_reduce(groups, 4)
    assert threads() == []
    assert got[-1].value("ringleader_collective_calls_total", operation="all_reduce")


def test_a_collector_that_fails_ends_nothing(caplog: pytest.LogCaptureFixture) -> None:
    called = threading.Semaphore(0)

    def collect(_: Snapshot) -> None:
        called.release()
        raise OSError("the line is cut")

    ringleader.metrics.set_collector(collect, every_s=0.01)
    with world(2) as groups:
        for _ in range(3):
            assert called.acquire(timeout=PATIENCE_S)
        all_reduce(groups, 4)
    assert threads() == []
    assert caplog.text.count("the line is cut") == 1, "not once per attempt"


@pytest.mark.parametrize("every_s", [0, -1, float("nan"), float("inf")])
def test_a_bad_interval_is_refused(every_s: float) -> None:
    with pytest.raises(ConfigError, match="every_s"):
        ringleader.metrics.set_collector(print, every_s=every_s)


def test_the_environment_turns_publishing_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ringleader.metrics.disable()
    # It is that of the process's first group: of a test before, by any of its ranks.
    monkeypatch.setattr(current.publisher, "_rank", "")
    folder = tmp_path / "metrics"
    monkeypatch.setenv("RINGLEADER_METRICS_FOLDER", str(folder))
    monkeypatch.setenv("RINGLEADER_METRICS", "0")
    with world(1):
        assert not current.is_enabled
    monkeypatch.delenv("RINGLEADER_METRICS")
    with world(1) as groups:
        until(lambda: read_files(folder) != [])
        all_reduce(groups, 4)
    assert threads() == []
    (mine,) = read_files(folder)
    labels = {"process": "worker", "rank": "0", "pid": str(os.getpid())}
    assert mine.labels == labels
    assert mine.snapshot.value("ringleader_collective_calls_total") == 1
    assert folder.stat().st_mode & 0o077 == 0
    assert (folder / f"{os.getpid()}.json").stat().st_mode & 0o077 == 0


def test_files_that_are_stale_or_invalid_are_left_out(tmp_path: Path) -> None:
    write_file(tmp_path, "3", ringleader.metrics.snapshot())
    mine = tmp_path / f"{os.getpid()}.json"
    bad = (b"garbage", b'{"job": "3"}\n{}', b'{"rank": 3}\n{}', b'{"rank": "3"}\n[]')
    for pid, data in enumerate((*bad, b"[]\n{}", b"")):
        (tmp_path / f"{pid}.json").write_bytes(data)
    (tmp_path / "notes.txt").write_text("{}")
    stale = tmp_path / "99.json"
    stale.write_bytes(mine.read_bytes())
    os.utime(stale, (0, time.time() - 2 * STALE_S))
    assert [each.labels["rank"] for each in read_files(tmp_path)] == ["3"]
    assert not stale.exists()
    assert read_files(tmp_path / "missing") == []


def test_a_new_worker_removes_what_ended_ones_left(tmp_path: Path) -> None:
    left, lately = tmp_path / "99.json", tmp_path / "98.json"
    for path in (left, lately):
        path.write_bytes(b"{}")
    os.utime(left, (0, time.time() - 2 * STALE_S))
    write_file(tmp_path, "0", ringleader.metrics.snapshot())
    assert not left.exists()
    assert lately.exists()


def test_a_forked_child_counts_from_zero(tmp_path: Path) -> None:
    result = tmp_path / "child"
    with world(2) as groups:
        all_reduce(groups, 4)
        before = ringleader.metrics.snapshot()
        pid = os.fork()
        if pid == 0:
            seen = ringleader.metrics.snapshot()
            result.write_text(str(seen.value("ringleader_collective_calls_total")))
            os._exit(0)
        assert os.waitpid(pid, 0)[1] == 0
        after = ringleader.metrics.snapshot()
    assert result.read_text() == "0.0"
    name = "ringleader_collective_calls_total"
    assert after.value(name) == before.value(name) > 0
