"""What a list of packages takes from the disk, and the hash of that.

Two projects may have the same list, with ``./pkg`` in it, and different packages there.
So an environment is kept under the hash of all that the installer reads: folders,
wheels, and folders of wheels, and what those name in turn.
"""

from __future__ import annotations

import hashlib
import os
import re
import tomllib
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from ringleader.errors import ConfigError
from ringleader.project.blob_store import size_text

MAX_FILES = 50_000
MAX_BYTES = 8 << 30
"""More is not read to make an environment: a list that names a home folder is wrong."""

_NAMED = re.compile(r"[A-Za-z0-9][\w.-]*\s*(?:\[[^\]]*\])?\s*@\s*(.+)")
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):")
"""The scheme of a URL. It has at least two letters: ``C:`` is a drive."""
_EXTRAS = re.compile(r"\[[^\]]*\]$")
_ARCHIVES = (".whl", ".zip", ".tgz", ".tar", ".gz", ".bz2", ".xz", ".lzma", ".tbz")
_KEYS = {"path", "directory", "editable", "registry", "url", "find-links", "git"}
"""Keys of ``uv.lock``, ``pylock.toml`` and ``[tool.uv]`` whose values may be paths."""
_SKIPPED = {"__pycache__", ".git"}


def local_path(text: str, where: str, *, is_place: bool = False) -> str:
    """Return the path that a requirement names; empty if it names none.

    ``is_place``: it is no requirement but the value of an option, where a plain word is
    a path, too. Raises ``ConfigError`` for what is local and cannot be hashed.
    """
    text = text.partition(" ;")[0].strip()
    if not is_place and (named := _NAMED.fullmatch(text)):
        text = named[1]
    if scheme := _SCHEME.match(text):
        kind = scheme[1].lower()
        if kind.endswith("+file") or (kind == "file" and not _is_here(text)):
            raise ConfigError(f"--sync-env: {where}: {text}: list a folder or a wheel")
        return unquote(urlsplit(text).path) if kind == "file" else ""
    if not is_place:
        text = _EXTRAS.sub("", text.partition(";")[0].partition("#")[0].strip())
        if not (text.startswith(".") or "/" in text or "\\" in text):
            return text if text.lower().endswith(_ARCHIVES) else ""
    return text


def _is_here(url: str) -> bool:
    return urlsplit(url).netloc in ("", "localhost")


def paths_in_toml(value: Any) -> Iterator[str]:  # noqa: ANN401 - parsed TOML
    """Yield the texts of a lock file, or of uv's settings, that may be paths."""
    if isinstance(value, list):
        for each in value:
            yield from paths_in_toml(each)
    elif isinstance(value, dict):
        for key, each in value.items():
            texts = each if isinstance(each, list) else [each]
            if key in _KEYS:
                yield from (text for text in texts if isinstance(text, str))
            yield from paths_in_toml(each)


@dataclass(slots=True)
class LocalSources:
    """Folders and files that an installer may read."""

    _found: dict[Path, None] = field(default_factory=dict)
    _left_bytes: int = MAX_BYTES
    _left_files: int = MAX_FILES

    def add(self, path: str, where: str, *folders: Path) -> None:
        """Add a path, from each of these folders where it is something.

        Installers disagree from where a path counts. Raises ``ConfigError`` if it is
        nowhere: then it could be something that is not hashed.
        """
        if not self.add_if_there(path, *folders):
            text = f"{path} is not in the project, and only that travels"
            raise ConfigError(f"--sync-env: {where}: {text}")

    def add_if_there(self, path: str, *folders: Path) -> bool:
        """Add a path, from each of these folders where it is something."""
        there = [each / path for each in folders if (each / path).exists()]
        for each in there:
            found = each.resolve()
            if found not in self._found:
                self._found[found] = None
                self._add_dependencies(found)
        return bool(there)

    def add_toml(self, value: Any, folder: Path) -> None:  # noqa: ANN401 - parsed TOML
        """Add the paths of a lock file or of uv's settings."""
        for text in paths_in_toml(value):
            path = local_path(text, folder.name, is_place=True)
            if path and path != ".":  # uv sync does not install the project itself
                self.add_if_there(path, folder)

    def _add_dependencies(self, folder: Path) -> None:
        """Add what the package in ``folder`` itself takes from the disk."""
        settings: dict[str, Any] = {}
        with suppress(OSError, ValueError):  # none, or the installer says what is wrong
            settings = tomllib.loads((folder / "pyproject.toml").read_text("utf-8"))
        project = _table(settings, "project")
        texts = [_table(settings, "build-system").get("requires")]
        texts += [project.get("dependencies")]
        texts += _table(project, "optional-dependencies").values()
        for each in texts:
            for text in each if isinstance(each, list) else ():
                if path := local_path(str(text), folder.name):
                    self.add_if_there(path, folder)
        self.add_toml(_table(settings, "tool").get("uv"), folder)

    def digest(self) -> bytes:
        """Return the hash of all that was added, by content and relative names."""
        made = hashlib.sha256()
        for path in self._found:
            for name, file in _files(path, set()):
                made.update(f"{name}\0{self._hash(file)}\0".encode(errors="replace"))
            made.update(b"\0")
        return made.digest()

    def _hash(self, path: Path) -> str:
        try:
            self._left_files -= 1
            self._left_bytes -= path.stat().st_size
            if self._left_files < 0 or self._left_bytes < 0:
                text = f"more than {MAX_FILES} files, or {size_text(MAX_BYTES)}"
                raise ConfigError(f"--sync-env: {path.parent}: {text}: list less")
            with open(path, "rb") as file:
                return hashlib.file_digest(file, "sha256").hexdigest()
        except OSError as exc:
            raise ConfigError(f"--sync-env: {path}: {exc.strerror}") from exc


def _table(value: dict[str, Any], name: str) -> dict[str, Any]:
    found = value.get(name)
    return found if isinstance(found, dict) else {}


def _files(path: Path, seen: set[str]) -> Iterator[tuple[str, Path]]:
    """Yield name and path of each file below ``path``, in order, through links, too."""
    if not path.is_dir():
        yield path.name, path
        return
    if (real := os.path.realpath(path)) in seen:  # a link to a folder above it
        return
    for each in sorted(path.iterdir()):
        if each.name in _SKIPPED or not (each.is_dir() or each.is_file()):
            continue
        for name, file in _files(each, {*seen, real}):
            yield (f"{each.name}/{name}" if each.is_dir() else name), file
