"""Where checkpoints lie: a folder, or any place that fsspec knows, such as a bucket.

A file appears under its name only when all its bytes are on the disk. A bucket does
that by itself; a folder needs a temporary name, fsync and a rename.
"""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, Protocol

from ringleader.errors import ConfigError
from ringleader.identity.storage.private_file import sync_directory

TEMPORARY = ".new-"
"""Prefix of a file that is not complete; a crash leaves it, nobody reads it."""


class NewFile(Protocol):
    """A file that appears under its name when it is published."""

    def write(self, piece: bytes | memoryview) -> None:
        """Append bytes; OSError if that is impossible."""
        ...

    def publish(self) -> None:
        """Give the complete file its name; OSError if that is impossible."""
        ...

    def discard(self) -> None:
        """Delete what was written; does nothing after ``publish``."""
        ...


class Storage(Protocol):
    """Files under one root; names are relative to it, with ``/``."""

    is_shared: bool
    """True if all machines see the same files by nature, as in a bucket."""

    def create(self, name: str) -> NewFile:
        """Begin a file; OSError if that is impossible."""
        ...

    def read(self, name: str, begin: int = 0, num_bytes: int | None = None) -> bytes:
        """Return bytes of a file, fewer at its end; OSError if that is impossible."""
        ...

    def size(self, name: str) -> int | None:
        """Return the size of a file; None if there is none.

        Raises ConfigError if that cannot be found out.
        """
        ...

    def names(self, folder: str = "") -> list[str]:
        """Return the names in a folder; none if there is no folder."""
        ...

    def remove(self, name: str) -> None:
        """Delete a file, or a folder with its content; it may be gone already."""
        ...

    def __str__(self) -> str:
        """Return the root, as the user gave it."""
        ...


def write(storage: Storage, name: str, pieces: Iterable[bytes | memoryview]) -> None:
    """Make or replace a file atomically; ConfigError if that is impossible."""
    try:
        file = storage.create(name)
        try:
            for piece in pieces:
                file.write(piece)
            file.publish()
        finally:
            file.discard()
    except OSError as exc:
        why = exc.strerror or exc
        raise ConfigError(f"{storage}/{name}: cannot be written: {why}") from exc


def open_storage(root: str | os.PathLike[str]) -> Storage:
    """Return the storage of a path, or of a URL such as ``s3://bucket/run``."""
    text = os.fspath(root).removeprefix("file://")
    return BucketStorage(text) if "://" in text else FolderStorage(Path(text))


class FolderStorage:
    """A folder on a disk of this machine, or on one that several machines mount."""

    is_shared = False

    def __init__(self, root: Path) -> None:
        self.root = root.expanduser().absolute()

    def create(self, name: str) -> NewFile:
        path = self.root / name
        if not path.parent.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            sync_directory(path.parent.parent)
        return _FolderFile(path)

    def read(self, name: str, begin: int = 0, num_bytes: int | None = None) -> bytes:
        with open(self.root / name, "rb") as file:
            file.seek(begin)
            return file.read(-1 if num_bytes is None else num_bytes)

    def size(self, name: str) -> int | None:
        try:
            return os.stat(self.root / name).st_size
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as exc:
            raise _unreadable(self.root / name, exc) from exc

    def names(self, folder: str = "") -> list[str]:
        try:
            return sorted(os.listdir(self.root / folder))
        except (FileNotFoundError, NotADirectoryError):
            return []
        except OSError as exc:
            raise _unreadable(self.root / folder, exc) from exc

    def remove(self, name: str) -> None:
        path = self.root / name
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            with suppress(OSError):
                path.unlink(missing_ok=True)

    def __str__(self) -> str:
        return str(self.root)


class _FolderFile:
    def __init__(self, path: Path) -> None:
        self._path = path
        self._new = path.with_name(f"{TEMPORARY}{secrets.token_hex(4)}")
        self._file: IO[bytes] | None = open(self._new, "wb")  # noqa: SIM115

    def write(self, piece: bytes | memoryview) -> None:
        assert self._file is not None
        self._file.write(piece)

    def publish(self) -> None:
        assert self._file is not None
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        os.replace(self._new, self._path)
        self._file = None
        sync_directory(self._path.parent)

    def discard(self) -> None:
        if self._file is not None:
            with suppress(OSError):  # a full disk fails again while it flushes
                self._file.close()
            with suppress(OSError):
                self._new.unlink(missing_ok=True)
            self._file = None


class BucketStorage:
    """A place that fsspec opens by its URL; all machines see the same files."""

    is_shared = True

    def __init__(self, url: str) -> None:
        import fsspec  # torch needs it anyway; it imports slowly

        self.url = url.rstrip("/")
        try:
            self._files: Any
            self._files, self._root = fsspec.core.url_to_fs(self.url)
        except (ImportError, ValueError) as exc:
            raise ConfigError(f"{url}: {exc}") from exc

    def create(self, name: str) -> NewFile:
        path = self._path(name)
        self._files.makedirs(path.rpartition("/")[0], exist_ok=True)
        return _BucketFile(self._files, path)

    def read(self, name: str, begin: int = 0, num_bytes: int | None = None) -> bytes:
        end = None if num_bytes is None else begin + num_bytes
        return bytes(self._files.cat_file(self._path(name), start=begin, end=end))

    def size(self, name: str) -> int | None:
        try:
            return int(self._files.size(self._path(name)))
        except (FileNotFoundError, TypeError):
            return None
        except OSError as exc:
            raise _unreadable(f"{self}/{name}", exc) from exc

    def names(self, folder: str = "") -> list[str]:
        self._files.invalidate_cache()
        try:
            found = self._files.ls(self._path(folder), detail=False)
        except FileNotFoundError:
            return []
        return sorted(str(path).rstrip("/").rpartition("/")[2] for path in found)

    def remove(self, name: str) -> None:
        with suppress(FileNotFoundError):
            self._files.rm(self._path(name), recursive=True)

    def __str__(self) -> str:
        return self.url

    def _path(self, name: str) -> str:
        return f"{self._root}/{name}" if name else str(self._root)


def _unreadable(path: object, exc: OSError) -> ConfigError:
    return ConfigError(f"{path}: cannot be read: {exc.strerror or exc}")


class _BucketFile:
    """fsspec makes a file of a bucket visible when it is closed."""

    def __init__(self, files: Any, path: str) -> None:  # noqa: ANN401  # untyped library
        self._file = files.open(path, "wb")
        self._is_open = True

    def write(self, piece: bytes | memoryview) -> None:
        self._file.write(piece)

    def publish(self) -> None:
        self._file.close()
        self._is_open = False

    def discard(self) -> None:
        if self._is_open:
            self._is_open = False
            with suppress(AttributeError, OSError):
                self._file.discard()
