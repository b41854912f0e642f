"""The state file: what was stored comes back; a damaged file is set aside."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from ringleader.coordinator.registry.events import (
    Action,
    ForgetCheckpoint,
    ForgetNamespace,
    ForgetWorker,
    SaveCheckpoint,
    SaveWorker,
)
from ringleader.coordinator.registry.records import Checkpoint, Namespace, Worker
from ringleader.coordinator.server.state_file import StateFile
from ringleader.errors import ConfigError

RED = Namespace(b"r" * 32, "job")
BLUE = Namespace(b"b" * 32, "")


def worker(rank: int) -> Worker:
    return Worker(rank, f"w{rank}", "1", ("host:1", "[::1]:2"))


ACTIONS: list[Action] = [
    SaveWorker(RED, worker(0), True),
    SaveWorker(RED, worker(1), False),
    SaveWorker(BLUE, worker(0), True),
    SaveCheckpoint(RED, Checkpoint(5, "/out", {"w0": 0, "w1": 1}, 10.0, {"w1"})),
]


def nothing() -> Iterator[Action]:
    yield from ()


def test_what_was_stored_comes_back(tmp_path: Path) -> None:
    path, said = tmp_path / "deep" / "state", list[str]()
    state, content = StateFile.open(path, list, said.append)
    assert content == []
    assert path.stat().st_mode & 0o077 == 0
    state.save(ACTIONS, nothing)
    with pytest.raises(ConfigError, match="another coordinator uses it"):
        StateFile.open(path, list, said.append)
    state.close()
    state, content = StateFile.open(path, list, said.append)
    assert content == ACTIONS
    forget: list[Action] = [
        ForgetWorker(RED, "w1"),
        ForgetCheckpoint(RED, 5),
        ForgetNamespace(BLUE),
    ]
    state.save(forget, nothing)
    state.close()
    state, content = StateFile.open(path, list, said.append)
    assert content == ACTIONS[:1]
    state.close()
    assert said == []


def test_what_a_killed_process_stored_comes_back(tmp_path: Path) -> None:
    state, _ = StateFile.open(tmp_path / "state", list, print)
    state.save(ACTIONS, nothing)
    copies = tmp_path / "copy"
    copies.mkdir()
    for file in tmp_path.glob("state*"):  # as a crash leaves them, without close
        (copies / file.name).write_bytes(file.read_bytes())
    state.close()
    copy, content = StateFile.open(copies / "state", list, print)
    assert content == ACTIONS
    copy.close()


def _rubbish(path: Path) -> None:
    path.write_bytes(b"no database" * 1000)


def _flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[4096:8192] = b"\xff" * 4096
    path.write_bytes(data)


def _shorten(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:5000])


def _sql(text: str, path: Path) -> None:
    connection = sqlite3.connect(path)
    with connection:
        connection.execute(text)
    connection.close()


def _bad_rank(path: Path) -> None:
    _sql("UPDATE workers SET rank = -1", path)


def _bad_text(path: Path) -> None:
    _sql("UPDATE workers SET addresses = 'x'", path)


def _other_version(path: Path) -> None:
    _sql("PRAGMA user_version = 9", path)


@pytest.mark.parametrize(
    "damage", [_rubbish, _flip, _shorten, _bad_rank, _bad_text, _other_version]
)
def test_a_damaged_file_is_set_aside_with_a_sentence(
    tmp_path: Path, damage: object
) -> None:
    path, said = tmp_path / "state", list[str]()
    state, _ = StateFile.open(path, list, said.append)
    state.save(ACTIONS, nothing)
    state.close()
    assert callable(damage)
    damage(path)
    state, content = StateFile.open(path, list, said.append)
    assert content == []
    state.save(ACTIONS, nothing)
    state.close()
    [sentence] = said
    assert "was damaged" in sentence
    assert "register again" in sentence
    assert len(list(tmp_path.glob("state.damaged-*"))) == 1


def test_a_content_that_contradicts_itself_is_set_aside(tmp_path: Path) -> None:
    def build(saved: Iterable[Action]) -> int:
        if list(saved):
            raise ValueError("two workers have rank 0")
        return 7

    path, said = tmp_path / "state", list[str]()
    state, _ = StateFile.open(path, list, said.append)
    state.save(ACTIONS, nothing)
    state.close()
    state, built = StateFile.open(path, build, said.append)
    state.close()
    assert built == 7
    assert "two workers have rank 0" in said[0]


def test_a_full_disk_is_reported_once_and_repaired(tmp_path: Path) -> None:
    path, said = tmp_path / "state", list[str]()
    state, _ = StateFile.open(path, list, said.append)
    state._connection.execute("PRAGMA max_page_count = 1")  # no room at all
    many = [SaveWorker(RED, worker(rank), True) for rank in range(500)]
    state.save(many, lambda: many)
    state.save(many, lambda: many)
    assert len(said) == 1
    assert "full" in said[0]
    state._connection.execute("PRAGMA max_page_count = 1000000")
    state.save([], lambda: many)
    assert "stored again" in said[1]
    state.close()
    state, content = StateFile.open(path, list, said.append)
    assert content == many
    state.close()


def test_a_place_that_cannot_be_written_is_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="state: cannot be opened: "):
        StateFile.open(tmp_path / "file" / "state", list, print)
