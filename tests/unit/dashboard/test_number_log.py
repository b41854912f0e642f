"""``ringleader.log``: what a worker writes is what the agent reads."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import ringleader
from ringleader.dashboard import log as log_module
from ringleader.dashboard.log import MAX_FILE_BYTES, NumberLog
from ringleader.dashboard.number_files import NumberFolder, parse_point
from ringleader.errors import ConfigError
from ringleader.settings.number_log import VARIABLE


@pytest.fixture(autouse=True)
def _forget_the_log() -> None:
    log_module._logs.clear()


def test_numbers_of_a_rank_are_read_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    monkeypatch.setenv("RANK", "3")
    folder = NumberFolder(tmp_path)
    assert folder.read() == {}
    ringleader.log(loss=2.5, lr=0.1)
    (point,) = folder.read()[3]
    assert point.step == 1
    assert point.values == {"loss": 2.5, "lr": 0.1}
    assert folder.read() == {}, "only what is new"


def test_outside_of_a_job_nothing_happens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    monkeypatch.chdir(tmp_path)
    ringleader.log(loss=1.0)
    assert not list(tmp_path.iterdir())


def test_a_fast_loop_writes_few_lines_and_the_last_step(tmp_path: Path) -> None:
    path = tmp_path / "rank-0.jsonl"
    log = NumberLog(path)
    for step in range(20_000):
        log.add({"loss": float(step)}, None)
    log.flush()
    log.flush()
    points = NumberFolder(tmp_path).read()[0]
    assert points[-1].step == 20_000
    assert points[-1].values == {"loss": 19_999.0}
    assert len(path.read_bytes().splitlines()) < 20_000


def test_a_file_starts_anew_before_it_is_too_long(tmp_path: Path) -> None:
    path = tmp_path / "rank-0.jsonl"
    folder = NumberFolder(tmp_path)
    NumberLog(path).add({"loss": 1.0}, 1)
    line = path.read_bytes()
    path.write_bytes(line * (MAX_FILE_BYTES // len(line)))
    assert folder.read()[0]
    NumberLog(path).add({"loss": 2.0}, 7)
    assert path.stat().st_size < MAX_FILE_BYTES // 2
    assert [point.step for point in folder.read()[0]] == [7]


def test_what_is_not_finite_is_none(tmp_path: Path) -> None:
    log = NumberLog(tmp_path / "rank-0.jsonl")
    log.add({"loss": float("nan"), "norm": float("inf")}, 5)
    (point,) = NumberFolder(tmp_path).read()[0]
    assert point.values == {"loss": None, "norm": None}
    assert point.step == 5


def test_too_many_numbers_and_long_names_are_refused(tmp_path: Path) -> None:
    log = NumberLog(tmp_path / "rank-0.jsonl")
    with pytest.raises(ConfigError, match="at most 32 numbers"):
        log.add({f"n{each}": 1.0 for each in range(33)}, None)
    with pytest.raises(ConfigError, match="64 letters"):
        log.add({"x" * 65: 1.0}, None)


def test_a_full_disk_does_not_stop_training(tmp_path: Path) -> None:
    NumberLog(tmp_path / "missing" / "rank-0.jsonl").add({"loss": 1.0}, None)


@pytest.mark.parametrize(
    "change",
    [
        {"step": "1"},
        {"step": 1 << 60},
        {"step_s": "x"},
        {"time_s": None},
        {"values": []},
        {"values": {"x": "y"}},
        {"values": {"x" * 65: 1}},
        {"values": {str(n): 1 for n in range(33)}},
    ],
)
def test_lines_of_others_are_skipped(change: dict[str, object]) -> None:
    good = {"time_s": 1.0, "step": 1, "step_s": None, "values": {"x": 1.0}}
    assert parse_point(json.dumps(good).encode()) is not None
    assert parse_point(json.dumps({**good, **change}).encode()) is None
    assert parse_point(b"[1]") is None
    assert parse_point(b"\xff") is None
    assert parse_point(b'"' + b"x" * 5000 + b'"') is None
