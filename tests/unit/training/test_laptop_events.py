"""Sleep, hanging code, an empty battery and SIGTERM, as decisions without a laptop."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path

import pytest

from ringleader.training.control.battery import (
    Battery,
    parse_pmset,
    read_battery,
    should_spare,
)
from ringleader.training.control.sleep_clock import SleepClock, suspended_s
from ringleader.training.control.termination import LeaveRequest
from ringleader.training.control.work_watch import WorkWatch, limit_s
from ringleader.training.data.balance import Flag
from ringleader.training.machine_events import MachineEvents


def test_only_a_long_sleep_counts_and_only_once() -> None:
    readings = iter([100.0, 100.0, 104.0, 106.5, 106.5, 140.0])
    clock = SleepClock(lambda: next(readings))
    assert [clock.slept_s() for _ in range(5)] == [0, 0, 6.5, 0, 33.5]


def test_this_machine_is_awake() -> None:
    clock = SleepClock()
    time.sleep(0.01)
    assert clock.slept_s() == 0
    assert suspended_s() >= -1e-3


def test_work_hangs_after_ten_times_the_usual_or_half_a_minute() -> None:
    assert [limit_s(s) for s in (1.0, 5.0, 0.0)] == [30.0, 50.0, 900.0]
    watch = WorkWatch()
    now_s = time.monotonic()
    assert watch.hung_for_s(now_s + 1000) == 0, "nothing runs"
    watch.begin(expected_s=5.0)
    assert watch.hung_for_s(now_s + 49) == 0
    assert watch.hung_for_s(now_s + 100) == pytest.approx(100, abs=40)
    watch.extend(80.0)
    assert watch.hung_for_s(now_s + 100) == 0, "it was stopped for 80 s of that"
    watch.end()
    assert watch.hung_for_s(now_s + 1000) == 0


def supply(folder: Path, name: str, **files: str) -> None:
    (folder / name).mkdir()
    for file, text in files.items():
        (folder / name / file).write_text(text + "\n")


def test_a_low_battery_without_mains_is_spared(tmp_path: Path) -> None:
    assert read_battery(tmp_path) is None
    supply(tmp_path, "AC", type="Mains", online="0")
    supply(tmp_path, "mouse", type="Battery", scope="Device", capacity="3")
    supply(tmp_path, "broken", type="Battery", capacity="?")
    assert read_battery(tmp_path) is None
    supply(tmp_path, "BAT0", type="Battery", capacity="64", status="Discharging")
    supply(tmp_path, "BAT1", type="Battery", capacity="19", status="Discharging")
    found = read_battery(tmp_path)
    assert found == Battery(19.0, is_discharging=True)
    assert found.is_low
    assert not Battery(19.0, is_discharging=False).is_low
    assert not Battery(20.0, is_discharging=True).is_low
    assert should_spare() in (True, False)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (" -InternalBattery-0 (id=1)\t17%; discharging; 2:03 remaining", (17, True)),
        (" -InternalBattery-0 (id=1)\t100%; charged; 0:00 remaining", (100, False)),
        ("Now drawing from 'AC Power'\n", None),
    ],
)
def test_the_battery_of_a_mac(text: str, expected: tuple[float, bool] | None) -> None:
    found = parse_pmset(text)
    assert (found and (found.percent, found.is_discharging)) == expected


def test_a_member_leaves_after_a_step_without_work_for_it() -> None:
    events = MachineEvents(WorkWatch(), lambda: False)
    events.start()
    try:
        assert events.flags() == Flag(0)
        os.kill(os.getpid(), signal.SIGTERM)
        assert events.flags() == Flag.LEAVING
        events.on_delivered(Flag(0), 0)
        assert not events.must_leave, "nobody was told"
        events.on_delivered(Flag.LEAVING, 3)
        assert not events.must_leave, "the others may need its part of that step"
        events.on_delivered(Flag.LEAVING, 0)
        assert events.must_leave
    finally:
        events.close()


def test_a_low_battery_is_told_and_looked_at_once_a_minute() -> None:
    looks = iter([True])
    events = MachineEvents(WorkWatch(), lambda: next(looks))
    assert events.flags() == Flag.BATTERY
    assert events.flags() == Flag.BATTERY
    events.on_delivered(Flag.BATTERY, 0)
    assert not events.must_leave, "it stays, as a spare"


def test_quanta_are_watched_with_the_time_of_the_one_before() -> None:
    watch = WorkWatch()
    events = MachineEvents(watch, lambda: False)
    events.begin_quantum()
    now_s = time.monotonic()
    assert watch.hung_for_s(now_s + 800) == 0, "the first may take long"
    events.end_quantum(4.0)
    assert watch.hung_for_s(now_s + 1000) == 0
    events.begin_quantum()
    assert watch.hung_for_s(now_s + 39) == 0
    assert watch.hung_for_s(now_s + 90) > 0


def test_the_first_sigterm_asks_and_the_handler_is_restored() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with LeaveRequest() as request:
        assert not request.is_set()
        os.kill(os.getpid(), signal.SIGTERM)
        assert request.is_set()
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL, "the second one ends"
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_handler_of_the_user_stays() -> None:
    before = signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        with LeaveRequest() as request:
            assert signal.getsignal(signal.SIGTERM) is signal.SIG_IGN
            request.set()
        assert request.is_set()
    finally:
        signal.signal(signal.SIGTERM, before)


def test_signals_are_left_alone_outside_the_main_thread() -> None:
    handlers = []

    def enter() -> None:
        with LeaveRequest():
            handlers.append(signal.getsignal(signal.SIGTERM))

    thread = threading.Thread(target=enter)
    before = signal.getsignal(signal.SIGTERM)
    thread.start()
    thread.join()
    assert handlers == [before]
