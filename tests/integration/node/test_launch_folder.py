"""The folder of a launcher ends with it, or with the next launcher."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from ringleader.node.launch.launch_folder import launch_folder

LIMIT_S = 60.0
LAUNCHER = """
import sys
from ringleader.node.launch.launch_folder import launch_folder
with launch_folder() as folder:
    (folder / "log").write_text("x")
    print(folder, flush=True)
    sys.stdin.read()
"""

pytestmark = pytest.mark.skipif(os.name == "nt", reason="no rename of open files")


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A temporary folder of our own, for the processes, too."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    return tmp_path


@contextmanager
def launcher() -> Iterator[tuple[subprocess.Popen[str], Path]]:
    command = [sys.executable, "-c", LAUNCHER]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as process:
        assert process.stdout is not None
        yield process, Path(process.stdout.readline().strip())
        process.kill()


def test_it_is_private_and_removed_at_the_end(place: Path) -> None:
    with launch_folder() as folder:
        assert folder.parent == place
        assert folder.stat().st_mode & 0o077 == 0
        (folder / "attempt").mkdir()
    assert list(place.iterdir()) == []


def test_the_folder_of_a_killed_launcher_is_removed_and_that_of_a_living_one_is_not(
    place: Path,
) -> None:
    with launcher() as (killed, left), launcher() as (_, living):
        killed.kill()
        killed.wait(LIMIT_S)
        assert (left / "log").exists()
        with launch_folder() as folder:
            assert set(place.iterdir()) == {folder, living}
            assert (living / "log").exists()


def test_what_is_not_surely_abandoned_stays(place: Path) -> None:
    """A folder without a lock may have one in a moment; a link may lead anywhere."""
    (new := place / "ringleader-run-new").mkdir()
    elsewhere = place / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "lock").touch()
    (link := place / "ringleader-run-link").symlink_to(elsewhere)
    with launch_folder():
        assert new.is_dir()
        assert link.is_symlink()
        assert (elsewhere / "lock").exists()
