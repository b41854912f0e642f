"""Logs are streams with positions that hold, in files of bounded size."""

from __future__ import annotations

from pathlib import Path

from ringleader.jobs.machine.log_files import (
    LogWriter,
    find_logs,
    read_log,
    tail_position,
)


def read_all(folder: Path, name: str, position: int, most: int = 7) -> bytes:
    data = b""
    while True:
        position, part = read_log(find_logs(folder)[name], position, most)
        if not part:
            return data
        position, data = position + len(part), data + part


def test_what_was_written_is_read_from_any_position(tmp_path: Path) -> None:
    writer = LogWriter(tmp_path, "rank-3", segment_bytes=10)
    text = b"0123456789abcdefghij"
    for at in range(0, len(text), 4):
        writer.write(text[at : at + 4])
    for position in range(len(text) + 1):
        assert read_all(tmp_path, "rank-3", position) == text[position:]
    assert len(find_logs(tmp_path)["rank-3"]) == 2


def test_only_the_last_segments_are_kept_and_positions_hold(tmp_path: Path) -> None:
    writer = LogWriter(tmp_path, "rank-0", segment_bytes=100)
    text = b"".join(b"%09d\n" % number for number in range(500))
    for at in range(0, len(text), 10):
        writer.write(text[at : at + 10])
    kept = sum(path.stat().st_size for path in tmp_path.iterdir())
    assert kept <= 200
    begin, data = read_log(find_logs(tmp_path)["rank-0"], 0, 10)
    assert text[begin : begin + 10] == data, "the oldest byte that is kept"
    end = tail_position(find_logs(tmp_path)["rank-0"], 30)
    assert read_all(tmp_path, "rank-0", end) == text[-30:]


def test_a_second_writer_goes_on_where_the_first_ended(tmp_path: Path) -> None:
    for text in (b"one ", b"two"):
        LogWriter(tmp_path, "launcher", segment_bytes=2).write(text)
    assert read_all(tmp_path, "launcher", 0) == b"one two"


def test_other_files_are_no_logs(tmp_path: Path) -> None:
    for name in ("supervisor.txt", "rank-x.log", "rank-1.log.old", "rank-1.5.5.log"):
        (tmp_path / name).write_text("no")
    assert find_logs(tmp_path) == {}
    assert find_logs(tmp_path / "none") == {}


def test_a_full_disk_loses_output_and_not_the_job(tmp_path: Path) -> None:
    writer = LogWriter(tmp_path / "gone", "rank-0")
    writer.write(b"lost")
    assert writer.lost_bytes == 4
