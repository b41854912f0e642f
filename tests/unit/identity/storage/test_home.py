"""The private directory: modes, whole files, and one change at a time."""

from __future__ import annotations

import errno
import os
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from ringleader.errors import ConfigError
from ringleader.identity.secret_value import Secret
from ringleader.identity.storage import file_lock
from ringleader.identity.storage import home as home_module
from ringleader.identity.storage.home import Home
from ringleader.identity.storage.private_file import (
    TEMPORARY,
    read_private,
    write_private,
)
from ringleader.settings import home_directory

IS_ROOT = hasattr(os, "geteuid") and os.geteuid() == 0
posix_only = pytest.mark.skipif(os.name == "nt", reason="Windows has no modes")


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path / "deep" / "home")


def put(home: Home, name: str, content: bytes) -> None:
    with home.writing() as change:
        change.write(name, Secret(content))


def get(home: Home, name: str) -> bytes | None:
    found = home.read(name, 100)
    return None if found is None else found.reveal()


def test_what_is_written_is_read(home: Home) -> None:
    assert get(home, "cluster") is None, "also when there is no directory yet"
    assert home.names() == []
    put(home, "cluster", b"one")
    put(home, "cluster", b"two")
    assert get(home, "cluster") == b"two"
    assert home.names() == ["cluster", "lock"]


@posix_only
@pytest.mark.parametrize("umask", [0o000, 0o022, 0o077])
def test_directory_and_files_are_private_whatever_the_umask(
    home: Home, umask: int
) -> None:
    before = os.umask(umask)
    try:
        put(home, "cluster", b"secret")
    finally:
        os.umask(before)
    assert mode(home.path) == 0o700
    assert {mode(home.path / name) for name in home.names()} == {0o600}


@posix_only
@pytest.mark.parametrize("open_mode", [0o755, 0o770, 0o701, 0o720])
def test_an_open_directory_is_refused_with_the_mend(home: Home, open_mode: int) -> None:
    put(home, "cluster", b"secret")
    home.path.chmod(open_mode)
    mend = f"mode {open_mode:o}.*run: chmod 700 {home.path}"
    with pytest.raises(ConfigError, match=mend):
        get(home, "cluster")
    with pytest.raises(ConfigError, match=mend):
        put(home, "cluster", b"other")
    home.path.chmod(0o700)
    assert get(home, "cluster") == b"secret"


@posix_only
@pytest.mark.parametrize("open_mode", [0o644, 0o640, 0o604, 0o620, 0o602])
def test_an_open_file_is_refused_with_the_mend(home: Home, open_mode: int) -> None:
    put(home, "cluster", b"secret")
    path = home.path / "cluster"
    path.chmod(open_mode)
    with pytest.raises(ConfigError, match=f"chmod 600 {path}"):
        get(home, "cluster")


@posix_only
@pytest.mark.skipif(not IS_ROOT, reason="needs root to give a file away")
def test_what_belongs_to_somebody_else_is_refused(home: Home) -> None:
    put(home, "cluster", b"secret")
    os.chown(home.path, 12345, 12345)
    with pytest.raises(ConfigError, match="belongs to user 12345, and you are 0"):
        get(home, "cluster")


def test_a_large_file_is_not_read(home: Home) -> None:
    put(home, "cluster", b"x" * 101)
    with pytest.raises(ConfigError, match="not a file of at most 100 bytes"):
        get(home, "cluster")


def test_a_directory_in_place_of_a_file_is_refused(home: Home) -> None:
    put(home, "other", b"")
    (home.path / "cluster").mkdir(mode=0o700)
    with pytest.raises(ConfigError, match="cluster: not a file"):
        get(home, "cluster")


def test_a_file_in_place_of_the_directory_is_named(tmp_path: Path) -> None:
    (tmp_path / "home").write_text("")
    with pytest.raises(ConfigError, match="home"):
        put(Home(tmp_path / "home"), "cluster", b"")


# -- where it is -------------------------------------------------------------------


def test_without_a_word_it_is_in_the_users_home() -> None:
    assert home_directory({}) == Path.home() / ".ringleader"
    assert home_directory({"RINGLEADER_HOME": ""}) == Path.home() / ".ringleader"


def test_the_environment_says_where_it_is() -> None:
    assert home_directory({"RINGLEADER_HOME": "/run/mine"}) == Path("/run/mine")
    assert home_directory({"RINGLEADER_HOME": "~/mine"}) == Path.home() / "mine"


def test_a_place_that_depends_on_where_we_are_is_refused() -> None:
    with pytest.raises(ConfigError, match="'keys'; use an absolute path"):
        home_directory({"RINGLEADER_HOME": "keys"})


# -- a crash -----------------------------------------------------------------------

CRASH = """
import os, sys
from pathlib import Path
from ringleader.identity.storage.home import Home
from ringleader.identity.secret_value import Secret
from ringleader.settings import home_directory

# The power goes at the worst moment: all is written, nothing is renamed.
os.replace = lambda *names: os._exit(9)
with Home(Path(sys.argv[1])).writing() as change:
    change.write("cluster", Secret(b"new and secret"))
"""


@pytest.mark.parametrize("old", [None, b"old"])
def test_a_crash_leaves_the_old_file_and_the_rest_is_swept(
    home: Home, old: bytes | None
) -> None:
    put(home, "other", b"")
    if old is not None:
        put(home, "cluster", old)
    argv = [sys.executable, "-c", CRASH, str(home.path)]
    assert subprocess.run(argv, timeout=120, check=False).returncode == 9
    left = [name for name in home.names() if name.startswith(TEMPORARY)]
    assert len(left) == 1
    assert mode(home.path / left[0]) == 0o600
    assert get(home, "cluster") == old
    put(home, "another", b"")
    assert left[0] not in home.names(), "it held a secret"
    assert get(home, "cluster") == old


def test_a_full_disk_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "file"
    write_private(path, Secret(b"old"))
    path.unlink()
    path.mkdir()  # a rename onto it fails, as on a full disk
    with pytest.raises(ConfigError, match=f"{path}: cannot be written"):
        write_private(path, Secret(b"new"))
    assert os.listdir(tmp_path) == ["file"]


def test_there_is_no_file_where_none_was_written(tmp_path: Path) -> None:
    assert read_private(tmp_path / "nothing", 10) is None


# -- several at once ---------------------------------------------------------------


def test_changes_exclude_each_other(home: Home) -> None:
    order: list[str] = []
    started = threading.Event()

    def change_too() -> None:
        started.set()
        with home.writing():
            order.append("second")

    with home.writing():
        thread = threading.Thread(target=change_too, name="second change")
        thread.start()
        assert started.wait(60)
        thread.join(0.1)
        order.append("first")
    thread.join(60)
    assert order == ["first", "second"]


def test_a_process_that_is_stuck_is_not_waited_for_for_ever(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(home_module, "_LOCK_WAIT_S", 0.1)
    with (
        home.writing(),
        pytest.raises(ConfigError, match=r"locked by another process for 0\.1 s"),
        home.writing(),
    ):
        pass


def test_a_file_system_without_locks_is_not_taken_for_a_busy_one(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_locks(descriptor: int) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    put(home, "key", b"")
    monkeypatch.setattr(file_lock, "_lock", no_locks)
    with pytest.raises(ConfigError, match="key: cannot be locked: No locks available"):
        home.try_lock("key")
    with pytest.raises(ConfigError, match="lock: cannot be locked"):
        put(home, "key", b"")


def test_a_held_file_is_held_once(home: Home) -> None:
    put(home, "key", b"")
    first = home.try_lock("key")
    assert first is not None
    assert home.try_lock("key") is None
    first.close()
    first.close()
    again = home.try_lock("key")
    assert again is not None
    again.close()
