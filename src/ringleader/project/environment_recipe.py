"""``find_recipe``: the file of a project that says which packages it needs."""

from __future__ import annotations

import hashlib
import json
import platform
import re
import shlex
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from ringleader.errors import ConfigError
from ringleader.project.local_sources import LocalSources, local_path
from ringleader.settings import environment

NAMES = ("uv.lock", "pylock.toml", "requirements.txt", "pyproject.toml")
"""What is looked for, the most exact first."""
MAX_BYTES = 16 << 20
MAX_INCLUDED = 100

_LISTS = {"-r", "--requirement", "-c", "--constraint"}
_EDITABLE = {"-e", "--editable"}
_PLACES = {"-f", "--find-links", "-i", "--index-url", "--pypi-url", "--extra-index-url"}
_OPTIONS = _LISTS | _EDITABLE | _PLACES
_COMMENT = re.compile(r"(^|\s+)#.*$")
_VARIABLE = re.compile(r"\$\{([A-Z0-9_]+)\}")
_NAME = re.compile(r"[A-Za-z0-9][\w.-]*")
_OTHER_SOURCES = {"path", "workspace", "git", "url"}


@dataclass(frozen=True, slots=True)
class Recipe:
    """A file that lists packages."""

    path: Path
    digest: str
    """The digest of all that the environment depends on: these files, this Python."""
    dependencies: tuple[str, ...] = ()
    """What the project itself needs, as ``pyproject.toml`` says."""
    elsewhere: tuple[str, ...] = ()
    """Those of them that uv, and no other, takes from a path or a repository."""

    @property
    def kind(self) -> str:
        """One of ``NAMES``."""
        return self.path.name


def find_recipe(folder: Path, script: str) -> Recipe:
    """Find the file for ``script``: beside it, or in a folder above it in ``folder``.

    Raises ConfigError if there is none, or if it cannot be used.
    """
    for above in PurePosixPath(script).parents:
        for name in NAMES:
            if (path := folder / above / name).is_file():
                return _read(path, folder)
    text = f"the project has none of {', '.join(NAMES)}"
    raise ConfigError(f"--sync-env: {text}; write one, for example: uv lock")


def _read(path: Path, top: Path) -> Recipe:
    sources, pyproject = LocalSources(), path.with_name("pyproject.toml")
    texts = [_content(path)]
    dependencies: tuple[str, ...] = ()
    elsewhere: tuple[str, ...] = ()
    if path.name == "requirements.txt":
        texts = list(_read_requirements(path, sources))
    elif path.name != "pylock.toml":
        if not pyproject.is_file():
            raise ConfigError(f"--sync-env: {path.name} without pyproject.toml")
        texts.append(_content(pyproject))
        settings = _toml(pyproject)
        dependencies = _dependencies(pyproject, settings)
        elsewhere = tuple(_from_elsewhere(dependencies, settings))
        for each in dependencies:
            if local := local_path(each, pyproject.name):
                sources.add(local, pyproject.name, path.parent)
    if path.name in ("uv.lock", "pylock.toml"):
        sources.add_toml(_toml(path), path.parent)
    texts += _settings_of_uv(path.parent, top, sources)
    digest = hashlib.sha256()
    for part in (path.name, platform.python_version(), platform.machine(), sys.prefix):
        digest.update(f"{part}\0".encode())
    for text in texts:
        digest.update(hashlib.sha256(text).digest())
    digest.update(sources.digest())
    return Recipe(path, digest.hexdigest()[:32], dependencies, elsewhere)


def _toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(_content(path).decode())
    except ValueError as exc:
        raise ConfigError(f"--sync-env: {path.name}: {exc}") from None


def _settings_of_uv(folder: Path, top: Path, sources: LocalSources) -> Iterator[bytes]:
    """Yield uv's settings from ``folder`` up to ``top``; add what they take from the
    disk."""
    for each in (folder, *folder.parents):
        if (path := each / "uv.toml").is_file():
            yield _content(path)
            sources.add_toml(_toml(path), each)
        if (path := each / "pyproject.toml").is_file():
            tool = _toml(path).get("tool")
            found = tool.get("uv") if isinstance(tool, dict) else None
            yield json.dumps(found, sort_keys=True, default=str).encode()
            sources.add_toml(found, each)
        if each == top:
            return


def _from_elsewhere(
    dependencies: tuple[str, ...], settings: dict[str, Any]
) -> Iterator[str]:
    """Yield the dependencies that come from a path or a repository, as only uv knows:
    under their names others may be in the public index."""
    tool = settings.get("tool")
    found = tool.get("uv") if isinstance(tool, dict) else None
    found = found.get("sources") if isinstance(found, dict) else None
    by_name = {
        _plain_name(name): value if isinstance(value, list) else [value]
        for name, value in (found.items() if isinstance(found, dict) else ())
    }
    for each in dependencies:
        name = _NAME.match(each)
        for source in by_name.get(_plain_name(name[0]), ()) if name else ():
            if isinstance(source, dict) and source.keys() & _OTHER_SOURCES:
                yield each


def _plain_name(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _dependencies(pyproject: Path, settings: dict[str, Any]) -> tuple[str, ...]:
    try:
        found = settings.get("project", {}).get("dependencies", [])
    except AttributeError as exc:
        raise ConfigError(f"--sync-env: {pyproject.name}: {exc}") from None
    if not isinstance(found, list) or not all(isinstance(each, str) for each in found):
        text = "project.dependencies is not a list of texts"
        raise ConfigError(f"--sync-env: {pyproject.name}: {text}")
    return tuple(found)


def _read_requirements(path: Path, sources: LocalSources) -> Iterator[bytes]:
    """Yield a requirements file and those that it includes; add what they take from
    the disk."""
    todo = [path]
    for current in todo:  # which grows
        text = _expanded(current)
        yield text.encode()
        for number, line in _logical_lines(text):
            where = f"{current.name}, line {number}"
            folders = (current.parent, path.parent)
            for option, value in _options(line):
                if option in _EDITABLE:
                    text = "installs a folder for editing; job folders come and go"
                    raise ConfigError(f"--sync-env: {where}: {text}: list its packages")
                local = local_path(value, where, is_place=bool(option))
                if local and option in _LISTS:
                    file = current.parent / local
                    todo += [file] if file not in todo else []
                elif local:
                    sources.add(local, where, *folders)
        if len(todo) > MAX_INCLUDED:
            raise ConfigError(f"--sync-env: {path.name} includes too many files")


def _expanded(path: Path) -> str:
    """Return a file with the variables in it, as ``${HOME}``, replaced."""
    found = environment()
    try:
        text = _content(path).decode("utf-8-sig")
    except UnicodeDecodeError as exc:
        raise ConfigError(f"--sync-env: {path.name}: {exc}") from None
    return _VARIABLE.sub(lambda match: found.get(match[1]) or match[0], text)


def _logical_lines(text: str) -> Iterator[tuple[int, str]]:
    """Yield number and text of each line; one that ends with ``\\`` goes on."""
    begun, number = "", 0
    for number, line in enumerate(text.splitlines(), 1):
        begun += _COMMENT.sub("", line)
        if begun.endswith("\\"):
            begun = begun[:-1] + " "
            continue
        yield number, begun
        begun = ""
    if begun:
        yield number, begun


def _options(line: str) -> Iterator[tuple[str, str]]:
    """Yield the options of a line with their values, and its requirement as ''."""
    try:
        words = shlex.split(line)
    except ValueError:  # a quote that is not closed
        words = line.split()
    first = next((i for i, w in enumerate(words) if w.startswith("-")), len(words))
    if first:
        yield "", " ".join(words[:first])
    for number, word in enumerate(words[first:], first + 1):
        after = words[number] if number < len(words) else ""
        if word.startswith("--"):
            name, equals, value = word.partition("=")
        else:
            name, equals, value = word[:2], word[2:], word[2:]
        for option in _OPTIONS:  # pip takes ``--req`` for ``--requirement``
            if option == name or (len(name) > 2 and option.startswith(name)):
                yield option, value if equals else after


def _content(path: Path) -> bytes:
    try:
        with open(path, "rb") as file:
            data = file.read(MAX_BYTES + 1)
    except OSError as exc:
        raise ConfigError(f"--sync-env: {path.name}: {exc.strerror}") from exc
    if len(data) > MAX_BYTES:
        raise ConfigError(f"--sync-env: {path.name}: larger than {MAX_BYTES} bytes")
    return data
