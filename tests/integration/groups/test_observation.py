"""Observers of groups: what they are told by each kind of engine, and when."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial

import pytest
import torch

from ringleader.engine.call import Call
from ringleader.engine.engine import Prepared
from ringleader.engine.observer import observed
from ringleader.errors import GroupAborted, RingleaderError
from ringleader.groups.group import Group, handle_of
from ringleader.groups.handle import GroupHandle
from ringleader.groups.observation import observe_groups
from ringleader.testing.threaded_world import run_threads, world

BIG = 1 << 18
"""Elements of 1 MiB."""


@dataclass
class Record:
    """An observer that keeps everything."""

    calls: list[tuple[str, int, str, str]] = field(default_factory=list)
    """(operation, bytes, algorithm, outcome)."""
    began_s: list[float] = field(default_factory=list)
    waits: list[tuple[int, float]] = field(default_factory=list)
    steps: list[tuple[str, str, int, int]] = field(default_factory=list)
    num_closed: int = 0

    def watch(self, call: Call, run: Prepared) -> Prepared:
        return observed(self, call, run)

    def began(self, call: Call, at_s: float) -> None:
        assert call.algorithm != "none"
        self.began_s.append(at_s)

    def waited(self, peer: int, since_s: float, until_s: float) -> None:
        assert self.began_s[-1] <= since_s <= until_s
        self.waits.append((peer, until_s - since_s))

    def coded(
        self,
        step: str,
        codec: str,
        raw_bytes: int,
        coded_bytes: int,
        since_s: float,
        until_s: float,
    ) -> None:
        assert self.began_s[-1] <= since_s <= until_s
        self.steps.append((step, codec, raw_bytes, coded_bytes))

    def ended(
        self, call: Call, since_s: float, until_s: float, error: BaseException | None
    ) -> None:
        assert since_s == self.began_s[-1] <= until_s
        outcome = "" if error is None else type(error).__name__
        entry = (call.operation, call.num_bytes, call.algorithm, outcome)
        self.calls.append(entry)

    def closed(self) -> None:
        self.num_closed += 1


@pytest.fixture
def records() -> Iterator[dict[GroupHandle, Record]]:
    """The records of all groups, which every group made here has from its start."""
    found: dict[GroupHandle, Record] = {}

    def make(handle: GroupHandle) -> Record:
        found[handle] = Record()
        return found[handle]

    stop = observe_groups(make)
    yield found
    stop()


def on_all(groups: list[Group], what: str, *args: object, **options: object) -> None:
    """Call a method of every group, in threads."""
    run_threads([partial(getattr(g, what), *args, **options) for g in groups])


def all_reduce(groups: list[Group], count: int, **options: object) -> None:
    run_threads(
        [
            partial(g.all_reduce, torch.full((count,), float(g.rank)), **options)  # type: ignore[arg-type]
            for g in groups
        ]
    )


@pytest.mark.parametrize("transport", ["memory", "tcp", "shm"])
def test_every_call_is_told_once_with_bytes_and_algorithm(
    transport: str, records: dict[GroupHandle, Record]
) -> None:
    with world(2, transport) as groups:
        mine = [records[handle_of(g)] for g in groups]
        for record in mine:
            record.calls.clear()  # forming a group measures its links by calls
        sizes = [1, 1, 100, 100, BIG, BIG, BIG]  # repeated ones are prepared
        for count in sizes:
            all_reduce(groups, count)
        on_all(groups, "barrier")
        for group, record in zip(groups, mine, strict=True):
            expected = [
                ("all_reduce", 4 * n, group.choice("all_reduce", 4 * n)[0], "")
                for n in sizes
            ]
            assert record.calls[:-1] == expected
            assert record.calls[-1][0] == "barrier"
            assert {peer for peer, _ in record.waits} <= {1 - group.rank}
    assert [record.num_closed for record in mine] == [1, 1]


@pytest.mark.parametrize("transport", ["memory", "shm"])
@pytest.mark.parametrize("count", [1, BIG])
def test_waiting_is_told_with_the_late_peer(
    transport: str, count: int, records: dict[GroupHandle, Record]
) -> None:
    with world(2, transport) as groups:
        all_reduce(groups, count)
        record = records[handle_of(groups[0])]
        # Shared memory spins before it times a wait, for long on a busy machine.
        for late_s in (0.1, 1.0, 10.0):
            record.waits.clear()
            _reduce_late(groups, count, record, late_s)
            waited_s = sum(s for peer, s in record.waits if peer == 1)
            assert waited_s == pytest.approx(sum(s for _, s in record.waits))
            if waited_s > late_s / 2:
                return
        pytest.fail("told of less than half of 10 s")


def _reduce_late(
    groups: list[Group], count: int, record: Record, late_s: float
) -> None:
    """Reduce; rank 1 begins ``late_s`` after rank 0, whose record is given."""
    num_begun = len(record.began_s)

    def late() -> None:
        until_s = time.monotonic() + 60
        while len(record.began_s) == num_begun and time.monotonic() < until_s:
            time.sleep(0.001)
        time.sleep(late_s)
        groups[1].all_reduce(torch.ones(count))

    run_threads([lambda: groups[0].all_reduce(torch.ones(count)), late])


def test_a_codec_is_told_with_its_bytes(records: dict[GroupHandle, Record]) -> None:
    with world(2) as groups:
        all_reduce(groups, BIG, codec="int8")
        for group in groups:
            record = records[handle_of(group)]
            assert record.calls[-1][:2] == ("all_reduce", 4 * BIG)
            encoded = [s for s in record.steps if s[0] == "encode"]
            assert sum(raw for _, _, raw, _ in encoded) == 4 * BIG
            assert 3.9 < 4 * BIG / sum(coded for *_, coded in encoded) < 4
            assert {name for _, name, _, _ in record.steps} == {"int8"}
            assert {step for step, *_ in record.steps} == {"encode", "decode"}


def test_a_call_that_fails_is_told(records: dict[GroupHandle, Record]) -> None:
    with world(2) as groups:
        all_reduce(groups, 1)
        groups[1].abort("enough")
        with pytest.raises(GroupAborted):  # the notice is read when the call waits
            groups[0].all_reduce(torch.ones(BIG))
        record = records[handle_of(groups[0])]
        assert record.calls[-1][3]
        assert len(record.calls) == len(record.began_s)


def test_observers_come_and_go_while_a_group_is_open() -> None:
    first, second = Record(), Record()
    with world(1) as (group,):
        group.all_reduce(torch.ones(4))
        stop_first = observe_groups(lambda _: first)
        group.all_reduce(torch.ones(4))
        stop_second = observe_groups(lambda _: second)
        group.all_reduce(torch.ones(4))
        stop_first()
        group.all_reduce(torch.ones(4))
        stop_second()
        group.all_reduce(torch.ones(4))
        assert handle_of(group).executor.observer is None
    assert (len(first.calls), len(second.calls)) == (2, 2)
    assert first.num_closed == second.num_closed == 0


def test_ranks_of_a_subgroup_are_known_in_the_world(
    records: dict[GroupHandle, Record],
) -> None:
    with world(3) as groups:

        def part(group: Group) -> tuple[int, ...]:
            inner = group.subgroup([2, 0])
            if inner is None:
                return ()
            with inner:
                inner.barrier()
                return handle_of(inner).world_ranks

        assert run_threads([partial(part, g) for g in groups]) == [(2, 0), (), (2, 0)]
    assert len(records) == 5


def test_an_error_of_a_call_is_not_changed(records: dict[GroupHandle, Record]) -> None:
    with world(2) as groups:
        run_threads(
            [
                partial(_mismatch, groups[0], torch.ones(BIG)),
                partial(_mismatch, groups[1], torch.ones(BIG // 2)),
            ]
        )
    assert {records[handle_of(g)].calls[-1][3] != "" for g in groups} == {True}


def _mismatch(group: Group, tensor: torch.Tensor) -> None:
    with pytest.raises(RingleaderError):
        group.all_reduce(tensor)
