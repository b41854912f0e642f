"""``find_recipe``: the file of a project that says which packages it needs."""

from __future__ import annotations

import hashlib
import platform
import shlex
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from ringleader.errors import ConfigError

NAMES = ("uv.lock", "pylock.toml", "requirements.txt", "pyproject.toml")
"""What is looked for, the most exact first."""
MAX_BYTES = 16 << 20
MAX_INCLUDED = 100

_INCLUDES = {"-r", "--requirement", "-c", "--constraint"}
_EDITABLE = {"-e", "--editable"}


@dataclass(frozen=True, slots=True)
class Recipe:
    """A file that lists packages."""

    path: Path
    digest: str
    """The digest of all that the environment depends on: these files, this Python."""
    dependencies: tuple[str, ...] = ()
    """What the project itself needs, as ``pyproject.toml`` says."""

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
                return _read(path)
    text = f"the project has none of {', '.join(NAMES)}"
    raise ConfigError(f"--sync-env: {text}; write one, for example: uv lock")


def _read(path: Path) -> Recipe:
    files = [path]
    dependencies: tuple[str, ...] = ()
    if path.name == "requirements.txt":
        files = list(_included(path))
    elif path.name != "pylock.toml":
        pyproject = path.with_name("pyproject.toml")
        if not pyproject.is_file():
            raise ConfigError(f"--sync-env: {path.name} without pyproject.toml")
        files = list(dict.fromkeys([path, pyproject]))
        dependencies = _dependencies(pyproject)
    digest = hashlib.sha256()
    for part in (path.name, platform.python_version(), platform.machine(), sys.prefix):
        digest.update(f"{part}\0".encode())
    for file in files:
        digest.update(hashlib.sha256(_content(file)).digest())
    return Recipe(path, digest.hexdigest()[:32], dependencies)


def _dependencies(pyproject: Path) -> tuple[str, ...]:
    try:
        project = tomllib.loads(_content(pyproject).decode()).get("project", {})
        found = project.get("dependencies", [])
    except (ValueError, AttributeError) as exc:
        raise ConfigError(f"--sync-env: {pyproject.name}: {exc}") from None
    if not isinstance(found, list) or not all(isinstance(each, str) for each in found):
        text = "project.dependencies is not a list of texts"
        raise ConfigError(f"--sync-env: {pyproject.name}: {text}")
    return tuple(found)


def _included(path: Path) -> Iterator[Path]:
    """Yield a requirements file and those that it includes."""
    todo = [path]
    for current in todo:  # which grows
        yield current
        for number, line in enumerate(_content(current).decode().splitlines(), 1):
            words = _words(line)
            if words and words[0] in _EDITABLE:
                text = "installs a folder for editing; job folders come and go"
                where = f"{current.name}, line {number}"
                raise ConfigError(f"--sync-env: {where}: {text}: list its packages")
            if len(words) > 1 and words[0] in _INCLUDES and "://" not in words[1]:
                file = current.parent / words[1]
                todo += [file] if file not in todo else []
        if len(todo) > MAX_INCLUDED:
            raise ConfigError(f"--sync-env: {path.name} includes too many files")


def _words(line: str) -> list[str]:
    """Return the words of a line: ``-r other.txt`` or ``--requirement=other.txt``."""
    try:
        words = shlex.split(line, comments=True)
    except ValueError:
        return []
    if words and words[0].startswith("--"):
        name, _, value = words[0].partition("=")
        return [name, *([value] if value else []), *words[1:]]
    if words and words[0][:2] in _INCLUDES | _EDITABLE and len(words[0]) > 2:
        return [words[0][:2], words[0][2:], *words[1:]]
    return words


def _content(path: Path) -> bytes:
    try:
        with open(path, "rb") as file:
            data = file.read(MAX_BYTES + 1)
    except OSError as exc:
        raise ConfigError(f"--sync-env: {path.name}: {exc.strerror}") from exc
    if len(data) > MAX_BYTES:
        raise ConfigError(f"--sync-env: {path.name}: larger than {MAX_BYTES} bytes")
    return data
