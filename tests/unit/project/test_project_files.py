"""Projects are collected, stored and unpacked as they were."""

from __future__ import annotations

import errno
import os
import shutil
import stat
import subprocess
import time
from pathlib import Path

import pytest

from ringleader.errors import ConfigError
from ringleader.project import BlobStore, collect, keep, missing, unpack
from ringleader.project.blob_store import IN_USE_S
from ringleader.project.manifest import CHUNK_BYTES, decode, encode

needs_git = pytest.mark.skipif(shutil.which("git") is None, reason="needs git")


def write(root: Path, **content: str) -> Path:
    """Write files; a ``__`` in a name is a ``/``, and return the first one."""
    for name, text in content.items():
        path = root / (name.replace("__", "/") + ".py")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root / (next(iter(content)) + ".py")


def git(root: Path, *args: str) -> None:
    names = ("-c", "user.name=a", "-c", "user.email=a@b", "-c", "init.defaultBranch=m")
    env = {"PATH": os.environ["PATH"], "HOME": str(root), "GIT_CONFIG_NOSYSTEM": "1"}
    argv = ["git", *names, "-c", "protocol.file.allow=always", *args]
    subprocess.run(argv, cwd=root, check=True, env=env, capture_output=True, timeout=60)


def names_of(script: Path) -> list[str]:
    found = collect(script).manifest
    return [file.path for file in found.files] + [link.path for link in found.links]


@needs_git
def test_git_decides_which_files_travel(tmp_path: Path) -> None:
    root = tmp_path / "project"
    script = write(root, train="1", pkg__mod="2", gone="3", data__kept="4")
    (root / ".gitignore").write_text("/data\n*.log\n")
    git(root, "init", "-q")
    git(root, "add", ".", "-f", "data/kept.py")
    git(root, "commit", "-qm", "x")
    (root / "gone.py").unlink()
    (root / "data/ignored.bin").write_bytes(b"x" * 100)
    (root / "run.log").write_text("x")
    write(root, new="5")
    inner = write(root / "inner", own="6").parent
    git(inner, "init", "-q")
    assert names_of(script) == [
        ".gitignore",
        "data/kept.py",
        "inner/own.py",
        "new.py",
        "pkg/mod.py",
        "train.py",
    ]
    assert collect(root / "pkg/mod.py").script == "pkg/mod.py"
    with pytest.raises(ConfigError, match="Git ignores it"):
        collect(write(root / "data", ignored="7"))


@needs_git
def test_submodules_travel(tmp_path: Path) -> None:
    library, root = tmp_path / "library", tmp_path / "project"
    for folder in (library, root):
        write(folder, train="1")
        git(folder, "init", "-q")
        git(folder, "add", ".")
        git(folder, "commit", "-qm", "x")
    git(root, "submodule", "add", "-q", str(library), "lib")
    assert "lib/train.py" in names_of(root / "train.py")


def test_without_git_the_folder_of_the_script_travels(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = write(tmp_path, train="1", pkg__mod="2")
    for hidden in (
        ".env",
        ".ssh/id",
        "__pycache__/a.pyc",
        "old.pyc",
        "my env/lib/x.py",
    ):
        (tmp_path / hidden).parent.mkdir(exist_ok=True, parents=True)
        (tmp_path / hidden).write_text("secret")
    (tmp_path / "my env/pyvenv.cfg").write_text("")
    os.mkfifo(tmp_path / "pipe")
    assert names_of(script) == ["pkg/mod.py", "train.py"]
    assert collect(script).left_out == ("pipe is not a plain file",)
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(ConfigError, match="folder of its own"):
        collect(script)


def test_names_modes_contents_and_links_survive(tmp_path: Path) -> None:
    root = tmp_path / "Mein Projekt äöü"
    script = write(root, train="1")
    odd = root / "daten für alle" / "größe 1.bin"
    odd.parent.mkdir()
    odd.write_bytes(os.urandom(CHUNK_BYTES * 2 + 17))
    (root / "empty").touch()
    os.chmod(script, 0o755)
    (root / "link to data").symlink_to("daten für alle/größe 1.bin")
    (root / "folder").symlink_to("daten für alle")
    (root / "outside").symlink_to("/etc")
    (root / "to outside").symlink_to("outside")
    project = collect(script)
    assert len(project.left_out) == 2
    store, job = BlobStore(tmp_path / "store"), tmp_path / "jobs" / "1" / "work"
    sent = decode(encode(project.manifest))
    keep(project, store)
    assert not missing(sent, store)
    unpack(sent, store, job)
    assert (job / "daten für alle/größe 1.bin").read_bytes() == odd.read_bytes()
    assert (job / "link to data").read_bytes() == odd.read_bytes()
    assert os.readlink(job / "folder") == "daten für alle"
    assert not os.path.lexists(job / "outside")
    assert stat.S_IMODE((job / "train.py").stat().st_mode) == 0o700
    assert stat.S_IMODE((job / "empty").stat().st_mode) == 0o600
    assert [path.name for path in job.parent.iterdir()] == ["work"]
    with pytest.raises(ConfigError, match="already exists"):
        unpack(sent, store, job)


def test_a_project_that_is_too_large_is_refused_by_names(tmp_path: Path) -> None:
    script = write(tmp_path, train="1")
    with open(tmp_path / "weights.bin", "wb") as file:
        file.truncate(2 * 10**9)  # reading it would take seconds, and memory
    os.chmod(tmp_path / "weights.bin", 0)  # and fail, unless the user is root
    with pytest.raises(ConfigError) as caught:
        collect(script)
    said = str(caught.value)
    assert "2 GB  weights.bin" in said
    assert "at most 512 MB travel" in said
    assert "RINGLEADER_PROJECT_MB" in said
    (tmp_path / "weights.bin").unlink()
    with pytest.raises(ConfigError, match="at most 1 byte "):
        collect(write(tmp_path, train="12"), limit_bytes=1)


def test_a_file_that_changes_is_noticed(tmp_path: Path) -> None:
    script = write(tmp_path / "p", train="1")
    project = collect(script)
    with open(script, "a") as file:  # what is only appended does no harm
        file.write("2")
    keep(project, BlobStore(tmp_path / "one"))
    script.write_text("3")
    with pytest.raises(ConfigError, match="changed while it was read"):
        keep(project, BlobStore(tmp_path / "two"))


def test_a_damaged_chunk_is_found_and_comes_again(tmp_path: Path) -> None:
    project = collect(write(tmp_path / "p", train="1"))
    store, (digest,) = BlobStore(tmp_path / "store"), project.manifest.chunks()
    keep(project, store)
    (store.folder / digest[:2] / digest).write_text("2")
    with pytest.raises(ConfigError, match="damaged"):
        unpack(project.manifest, store, tmp_path / "job")
    assert not (tmp_path / "job").exists()
    assert missing(project.manifest, store) == {digest: 1}
    assert not store.put(digest, b"2")
    keep(project, store)
    unpack(project.manifest, store, tmp_path / "job")


@pytest.mark.skipif(os.geteuid() != 0, reason="mounts a small disk")
def test_a_full_disk_is_named_and_left_clean(tmp_path: Path) -> None:
    (tmp_path / "p").mkdir()
    (tmp_path / "p" / "data.bin").write_bytes(os.urandom(3 << 20))
    project = collect(write(tmp_path / "p", train="1"))
    store, disk = BlobStore(tmp_path / "store"), tmp_path / "disk"
    keep(project, store)
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(disk)]
    subprocess.run(mount, check=True, timeout=60)
    try:
        with pytest.raises(ConfigError, match=r"disk of .* is full: 3.15 MB are need"):
            unpack(project.manifest, store, disk / "job")
        with pytest.raises(ConfigError, match="is full"):
            keep(project, BlobStore(disk / "store"))
        first, second, third, *_ = project.manifest.chunks()
        other = BlobStore(disk / "other")
        assert other.put(first, store.get(first))  # room was not checked before
        assert other.put(second, store.get(second))
        with pytest.raises(ConfigError, match="is full; make room"):
            other.put(third, store.get(third))
        assert third in missing(project.manifest, other)
        left = [path for path in disk.rglob("*") if path.name.startswith(".new-")]
        assert left == []
        assert not (disk / "job").exists()
    finally:
        subprocess.run(["umount", str(disk)], check=True, timeout=60)


def test_other_errors_of_the_disk_say_what_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project = collect(write(tmp_path / "p", train="1"))

    def fail(*_: object) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(os, "replace", fail)
    store = BlobStore(tmp_path / "store")
    with pytest.raises(ConfigError, match="Read-only file system"):
        keep(project, store)
    assert not list(store.folder.glob("*/*"))


def test_the_store_evicts_the_longest_unused(tmp_path: Path) -> None:
    store = BlobStore(tmp_path / "store")
    for name in ("old", "middle", "new"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "data.bin").write_bytes(os.urandom(1000))
        project = collect(write(tmp_path / name, train=""))
        keep(project, store)
        (digest,) = project.manifest.chunks()
        hours = {"old": 3, "middle": 2, "new": 0}[name]
        used_s = time.time() - hours * IN_USE_S
        os.utime(store.folder / digest[:2] / digest, (used_s, used_s))
    left = store.folder / "ab" / ".new-crashed"
    left.parent.mkdir(exist_ok=True)
    left.write_text("x")
    os.utime(left, (0, 0))
    assert store.evict(max_bytes=2500) == 1001  # the oldest, and what a crash left
    assert not missing(collect(tmp_path / "middle/train.py").manifest, store)
    assert missing(collect(tmp_path / "old/train.py").manifest, store)
    assert store.evict(max_bytes=0) == 0, "what was used a moment ago stays"
