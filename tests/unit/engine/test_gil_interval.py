"""The switch interval is short while operations run, and the user's otherwise."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any, cast

import pytest
import torch

from ringleader.engine import gil_interval
from ringleader.errors import PeerLost
from ringleader.groups.group import Group, handle_of
from ringleader.testing.threaded_world import run_threads, run_world, world

USUAL_S, SHORT_S = 0.005, 0.0001
SOON_S = 120.0


@pytest.fixture(autouse=True)
def usual_interval(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Each test begins with Python's interval and our default."""
    monkeypatch.setattr(gil_interval, "_short_s", SHORT_S)
    before_s = sys.getswitchinterval()
    sys.setswitchinterval(USUAL_S)
    yield
    assert gil_interval._running == [], "every begin has its end"
    sys.setswitchinterval(before_s)


def interval_s() -> float:
    return round(sys.getswitchinterval(), 6)  # as exactly as Python keeps it


def test_it_is_short_from_begin_to_end() -> None:
    gil_interval.begin()
    assert interval_s() == SHORT_S
    gil_interval.end()
    assert interval_s() == USUAL_S


def test_it_stays_short_until_the_last_operation_has_ended() -> None:
    gil_interval.begin()
    gil_interval.begin()
    gil_interval.end()
    assert interval_s() == SHORT_S
    gil_interval.end()
    assert interval_s() == USUAL_S


def test_one_that_is_shorter_already_is_left_alone() -> None:
    sys.setswitchinterval(SHORT_S / 2)
    gil_interval.begin()
    assert interval_s() == SHORT_S / 2
    gil_interval.end()
    assert interval_s() == SHORT_S / 2


@pytest.mark.parametrize("theirs_s", [0.002, 0.01, SHORT_S / 4])
def test_one_that_somebody_sets_meanwhile_stays(theirs_s: float) -> None:
    gil_interval.begin()
    sys.setswitchinterval(theirs_s)
    gil_interval.begin()
    gil_interval.end()
    assert interval_s() == theirs_s, "not shortened again"
    gil_interval.end()
    assert interval_s() == theirs_s
    gil_interval.begin()
    assert interval_s() == min(theirs_s, SHORT_S)
    gil_interval.end()
    assert interval_s() == theirs_s, "the next operation gives back this one"


def test_zero_leaves_it_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gil_interval, "_short_s", 0.0)
    gil_interval.begin()
    assert interval_s() == USUAL_S
    gil_interval.end()
    assert interval_s() == USUAL_S


def test_threads_that_overlap_in_any_order_end_with_the_usual_one() -> None:
    """The last user restores the interval, whichever was the first."""
    num_threads, num_turns = 4, 200
    together = threading.Barrier(num_threads)

    def hurry() -> None:
        for _ in range(num_turns):
            gil_interval.begin()
            gil_interval.end()
        together.wait(SOON_S)
        gil_interval.begin()
        together.wait(SOON_S)
        assert interval_s() == SHORT_S
        together.wait(SOON_S)
        gil_interval.end()

    run_threads([hurry] * num_threads)
    assert interval_s() == USUAL_S


@pytest.mark.parametrize("ends_after", [*range(12), 100])
def test_another_thread_may_come_between_any_two_lines(ends_after: int) -> None:
    """One that began between two lines of end() made it give back 0 s, and raise; one
    that ended while end() made it short again left it short.
    """
    for turn in range(100):
        lines = 0
        stays = False

        def interrupt(frame: FrameType, event: str, _: object) -> object:
            nonlocal lines, stays
            if event == "line" and frame.f_code.co_filename == gil_interval.__file__:
                if lines == turn:  # noqa: B023 - called in this turn only
                    gil_interval.begin()
                    stays = True
                if lines == turn + ends_after:  # noqa: B023
                    gil_interval.end()
                    stays = False
                lines += 1
            return interrupt

        tracing = sys.gettrace()
        sys.settrace(cast("Any", interrupt))
        try:
            gil_interval.begin()
            gil_interval.end()
        finally:
            sys.settrace(tracing)
        if lines <= turn:
            break
        if stays:
            assert interval_s() == SHORT_S, f"the other is under way (line {turn})"
            gil_interval.end()
        assert interval_s() == USUAL_S, f"after line {turn}"
    assert turn > 10, "it came between all of them"


# -- operations --------------------------------------------------------------------


def test_it_is_short_during_an_operation_and_usual_after_it() -> None:
    def live(group: Group) -> float:
        seen: list[float] = []

        def body() -> None:
            group.barrier()
            seen.append(interval_s())
            group.barrier()

        handle_of(group).together(body)
        return seen[0]

    assert run_world(2, live) == [SHORT_S] * 2
    assert interval_s() == USUAL_S


def test_a_failed_operation_gives_it_back() -> None:
    with world(2) as (group, other):
        other.close()
        for tensor in (torch.ones(2), torch.ones(100_000)):
            with pytest.raises(PeerLost):
                group.all_reduce(tensor)
            assert interval_s() == USUAL_S


@pytest.mark.parametrize(
    ("transport", "count"), [("tcp", 2), ("shm", 2), ("shm", 2000), ("shm", 100_000)]
)
def test_a_prepared_operation_hurries_too(
    transport: str, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second all_reduce of a size takes a way of its own.

    In shared memory a small one hurries once it has to wait, as rank 0 does here.
    """
    hurries = threading.Event()
    begin = gil_interval.begin

    def note() -> None:
        begin()
        hurries.set()

    with world(2, transport) as (group, other):

        def twice(group: Group) -> None:
            for _ in range(2):
                group.all_reduce(torch.ones(count))

        run_threads([lambda: twice(group), lambda: twice(other)])
        monkeypatch.setattr(gil_interval, "begin", note)
        waits = threading.Thread(target=group.all_reduce, args=[torch.ones(count)])
        waits.start()
        assert hurries.wait(SOON_S)
        assert interval_s() == SHORT_S
        other.all_reduce(torch.ones(count))
        waits.join(SOON_S)
    assert interval_s() == USUAL_S


def test_the_environment_can_turn_it_off() -> None:
    """The module reads it when it is imported; without torch that takes a moment."""
    path = Path(gil_interval.__file__)
    script = (
        "import runpy, sys; before = sys.getswitchinterval()\n"
        f"module = runpy.run_path({str(path)!r}); module['begin']()\n"
        "print(sys.getswitchinterval() == before)\n"
        "module['end'](); print(sys.getswitchinterval() == before)"
    )
    for value, is_left_alone in (("0", "True"), ("0.0005", "False")):
        ended = subprocess.run(
            [sys.executable, "-c", script],
            env={"RINGLEADER_SWITCH_INTERVAL_S": value},
            capture_output=True,
            text=True,
            timeout=SOON_S,
            check=False,
        )
        assert (ended.stdout, ended.stderr) == (f"{is_left_alone}\nTrue\n", "")
