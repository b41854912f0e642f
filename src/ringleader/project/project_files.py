"""``collect`` and ``unpack``: from the user's folder into a store, and out again."""

from __future__ import annotations

import hashlib
import os
import secrets
import shutil
import stat
from collections.abc import Container, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from ringleader.errors import ConfigError
from ringleader.project import manifest as manifests
from ringleader.project.blob_store import BlobStore, check_room, disk_error, size_text
from ringleader.project.file_list import FileList, list_project
from ringleader.project.manifest import (
    CHUNK_BYTES,
    Manifest,
    ProjectFile,
    ProjectLink,
    links_out,
)
from ringleader.settings.project_limit import VARIABLE, project_limit_bytes

NAMED_FILES = 5
"""Files that a refusal names, the biggest first."""
_TEMPORARY = ".new-"


@dataclass(frozen=True, slots=True)
class ProjectFiles:
    """The files of a project on this machine."""

    root: Path
    """Folder of the project."""
    script: str
    """Path of the script below it, with ``/``."""
    manifest: Manifest
    left_out: tuple[str, ...] = ()
    """Sentences for the user: what does not travel, and why."""


@dataclass(frozen=True, slots=True)
class _Found:
    """What lies at the names of a project."""

    files: dict[str, os.stat_result]
    links: dict[str, str]
    left_out: list[str]


def collect(
    script: Path, limit_bytes: int | None = None, *, folder: Path | None = None
) -> ProjectFiles:
    """Read and hash the files of the project that ``script`` belongs to.

    ``folder`` is the project where there is no repository; None: that of the script.
    Sizes are compared with the limit before anything is read. Raises ConfigError, with
    the biggest files, if they are too large, and for names that other systems do not
    allow.
    """
    listed = list_project(script, folder)
    root, limit = listed.root, limit_bytes or project_limit_bytes()
    try:
        found = _look_at(listed)
        _check_size(listed, found.files, limit)
        files = tuple(_hash_file(root, name, found.files[name]) for name in found.files)
    except OSError as exc:
        raise ConfigError(f"{exc.filename or root}: {exc.strerror}") from exc
    made = Manifest(files, tuple(_links_inside(found)))
    try:
        manifests.check(made)
    except ValueError as exc:
        text = f"{exc}; rename it, or list it in .gitignore"
        raise ConfigError(f"{root}: cannot be sent: {text}") from None
    inside = script.resolve().relative_to(root).as_posix()
    if inside not in found.files:
        raise ConfigError(f"{script}: Git ignores it; change .gitignore")
    return ProjectFiles(root, inside, made, tuple(found.left_out))


def keep(project: ProjectFiles, store: BlobStore) -> None:
    """Copy what the store lacks of a project into it.

    Raises ConfigError if the disk is full, or if a file has changed since ``collect``.
    """
    store.evict()
    lacking = missing(project.manifest, store)
    store.check_room(sum(lacking.values()))
    for file in project.manifest.files:
        if lacking.keys().isdisjoint(file.sha256):
            continue
        for digest, data in zip(
            file.sha256,
            _read_chunks(project.root / file.path, file.num_bytes),
            strict=False,
        ):
            if digest in lacking and store.put(digest, data):
                del lacking[digest]
    if lacking:
        text = "a file changed while it was read; try again"
        raise ConfigError(f"{project.root}: {text}")


def missing(manifest: Manifest, store: BlobStore) -> dict[str, int]:
    """Return hash -> length of the chunks that the store lacks, in order."""
    chunks = manifest.chunks().items()
    return {digest: size for digest, size in chunks if not store.has(digest)}


def unpack(manifest: Manifest, store: BlobStore, folder: Path) -> None:
    """Write a project into the new folder ``folder``, completely or not at all.

    Raises ConfigError if the manifest is not safe, a chunk is missing, the folder
    exists or the disk is full.
    """
    try:
        manifests.check(manifest)
    except ValueError as exc:
        raise ConfigError(f"{folder}: cannot be unpacked: {exc}") from None
    if os.path.lexists(folder):
        raise ConfigError(f"{folder}: already exists; nothing is unpacked over it")
    temporary = folder.with_name(f"{_TEMPORARY}{folder.name}-{secrets.token_hex(4)}")
    try:
        folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        check_room(folder.parent, manifest.num_bytes)
        temporary.mkdir(mode=0o700)
        _write_all(manifest, store, temporary)
        os.rename(temporary, folder)
    except OSError as exc:
        raise disk_error(folder, exc) from exc
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _write_all(manifest: Manifest, store: BlobStore, folder: Path) -> None:
    """Write files, then links: so no file is written through one."""
    for file in manifest.files:
        path = folder / file.path
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        mode = 0o700 if file.is_executable else 0o600
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)
        flags |= getattr(os, "O_NOFOLLOW", 0)
        with open(os.open(path, flags, mode), "wb", buffering=0) as out:
            for digest in file.sha256:
                store.copy_into(digest, out)
            if out.tell() != file.num_bytes:
                raise ConfigError(f"{path}: its parts have another size; start again")
    for link in manifest.links:
        path = folder / link.path
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        os.symlink(link.target, path)


def find_written(manifest: Manifest, folder: Path) -> dict[str, os.stat_result]:
    """Return the plain files below ``folder`` that are not as ``unpack`` wrote them.

    Everything is read: times of files say nothing certain. Caches of Python, and what
    cannot be read, are left out.
    """
    original = {file.path: file for file in manifest.files}
    found = {}
    for path in sorted(_plain_files(folder)):
        name = path.relative_to(folder).as_posix()
        with suppress(OSError):
            state = path.lstat()
            if not _is_as(original.get(name), path, state):
                found[name] = state
    return found


def drop_unchanged(
    manifest: Manifest, folder: Path, written: Container[str], kept_bytes: int
) -> None:
    """Delete the files that ``find_written`` did not name, but for the smallest ones.

    They are in the store, and on the machine from which they came.
    """
    for file in sorted(manifest.files, key=lambda file: file.num_bytes):
        kept_bytes -= file.num_bytes
        if kept_bytes < 0 and file.path not in written:
            with suppress(OSError):
                (folder / file.path).unlink()


def _plain_files(folder: Path) -> Iterator[Path]:
    for place, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if name != "__pycache__"]
        for name in names:
            path = Path(place, name)
            with suppress(OSError):
                if stat.S_ISREG(path.lstat().st_mode):
                    yield path


def _is_as(file: ProjectFile | None, path: Path, state: os.stat_result) -> bool:
    if file is None or file.num_bytes != state.st_size:
        return False
    chunks = _read_chunks(path, file.num_bytes)
    found = tuple(hashlib.sha256(data).hexdigest() for data in chunks)
    return found == file.sha256


def _look_at(listed: FileList) -> _Found:
    found = _Found({}, {}, [])
    for name in listed.names:
        path = listed.root / name
        state = os.lstat(path)
        if stat.S_ISLNK(state.st_mode):
            found.links[name] = os.readlink(path)
        elif stat.S_ISREG(state.st_mode):
            found.files[name] = state
        else:
            found.left_out.append(f"{name} is not a plain file")
    return found


def _links_inside(found: _Found) -> list[ProjectLink]:
    """Return the links that stay in the project; leave the others out."""
    links = dict(found.links)
    while True:
        kept = [ProjectLink(*each) for each in links.items()]
        out = links_out(kept, [*found.files, *links])
        if not out:
            return kept
        for name in out:
            text = f"{name} is a link to {links.pop(name)}, which is not in the project"
            found.left_out.append(text)


def _check_size(
    listed: FileList, files: dict[str, os.stat_result], limit_bytes: int
) -> None:
    total = sum(state.st_size for state in files.values())
    if total <= limit_bytes:
        return
    biggest = sorted(files, key=lambda name: -files[name].st_size)[:NAMED_FILES]
    shown = "".join(f"\n  {size_text(files[n].st_size):>8}  {n}" for n in biggest)
    keep_out = "list them in .gitignore" if listed.is_git else "move them elsewhere"
    raise ConfigError(
        f"{listed.root}: the project has {size_text(total)} in {len(files)} files, and "
        f"at most {size_text(limit_bytes)} travel. The biggest:{shown}\n"
        f"What no other machine needs: {keep_out}. What all need: copy it to each "
        f"machine once, or raise {VARIABLE} on all. --no-sync sends nothing."
    )


def _hash_file(root: Path, name: str, state: os.stat_result) -> ProjectFile:
    digests, size = [], 0
    for data in _read_chunks(root / name, state.st_size):
        digests.append(hashlib.sha256(data).hexdigest())
        size += len(data)
    if size != state.st_size:
        raise ConfigError(f"{root / name}: changed while it was read; try again")
    return ProjectFile(name, size, tuple(digests), bool(state.st_mode & stat.S_IXUSR))


def _read_chunks(path: Path, num_bytes: int) -> Iterator[bytes]:
    """Yield the first ``num_bytes`` of a file, which may be growing, in chunks."""
    flags = os.O_RDONLY | getattr(os, "O_BINARY", 0) | getattr(os, "O_NOFOLLOW", 0)
    with open(os.open(path, flags | getattr(os, "O_NONBLOCK", 0)), "rb") as file:
        while data := file.read(min(CHUNK_BYTES, num_bytes)):
            num_bytes -= len(data)
            yield data
