"""A file appears complete or not at all, in a folder and behind a URL."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from ringleader.checkpoint.storage import Storage, open_storage, write
from ringleader.errors import ConfigError


@pytest.fixture(params=["folder", "url"])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> Storage:
    if request.param == "folder":
        return open_storage(tmp_path / "run")
    return open_storage(f"memory://{tmp_path}/run")


def test_files_are_written_read_listed_and_removed(storage: Storage) -> None:
    assert storage.names() == []
    write(storage, "a/one", [b"hello ", memoryview(b"world")])
    assert storage.read("a/one") == b"hello world"
    assert storage.read("a/one", 6, 3) == b"wor"
    assert storage.size("a/one") == 11
    assert storage.size("a/two") is None
    assert storage.names("a") == ["one"]
    storage.remove("a")
    storage.remove("a")
    assert storage.names() == []


def test_an_interrupted_write_leaves_the_old_file(tmp_path: Path) -> None:
    storage = open_storage(tmp_path)
    write(storage, "a/one", [b"old"])

    def pieces() -> Iterator[bytes]:
        yield b"new"
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write(storage, "a/one", pieces())
    assert storage.names("a") == ["one"]
    assert storage.read("a/one") == b"old"


def test_a_folder_that_is_a_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "run").write_text("")
    with pytest.raises(ConfigError, match=r"run/a: cannot be written: (Not a|File ex)"):
        write(open_storage(tmp_path / "run"), "a", [])


def test_an_unknown_protocol_is_one_sentence() -> None:
    with pytest.raises(ConfigError, match="nowhere://x: Protocol not known: nowhere"):
        open_storage("nowhere://x")
