"""``list_project``: which files belong to the project of a script.

In a Git repository these are the tracked files and those that are new and not ignored,
of the whole repository and its submodules. Elsewhere it is the folder of the script, or
that in which ``python -m`` finds a module, without hidden files, caches and virtual
environments.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ringleader import settings
from ringleader.errors import ConfigError
from ringleader.project.manifest import MAX_FILES

GIT_S = 60.0
"""Git lists a million files in seconds."""

_GIT_VARIABLES = {"GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_PREFIX"}
"""Set by Git for its hooks; they name another repository than the script's."""
_SKIPPED_FOLDERS = {"__pycache__", "node_modules", "site-packages", "venv"}
_SKIPPED_ENDINGS = (".pyc", ".pyo", "~")


@dataclass(frozen=True, slots=True)
class FileList:
    """The folder of a project, and the names of its files below it."""

    root: Path
    names: tuple[str, ...]
    is_git: bool


def list_project(script: Path, folder: Path | None = None) -> FileList:
    """List the files of the project that ``script`` belongs to.

    ``folder`` is the project where there is no repository; None: that of the script.
    Raises ConfigError if the script is not there, lies in the home folder itself, or if
    Git fails.
    """
    if not script.is_file():
        raise ConfigError(f"{script}: there is no such script")
    root = _repository(script.resolve().parent)
    folder = (folder or script.parent).resolve()
    if root is not None and root != _home():
        return FileList(root, tuple(_sorted(root, _git_names(root))), is_git=True)
    if folder in (_home(), Path(folder.anchor)):
        text = f"its folder is {folder}, and not all of that can be sent"
        text = f"{text}; put it into a folder of its own, or use --no-sync"
        raise ConfigError(f"{script}: {text}")
    return FileList(folder, tuple(_sorted(folder, _walk(folder))), is_git=False)


def _repository(folder: Path) -> Path | None:
    """Return the top folder of the Git repository; None without one, or without Git."""
    inside = any((each / ".git").exists() for each in (folder, *folder.parents))
    if not inside or shutil.which("git") is None:
        return None
    return Path(_git(folder, "rev-parse", "--show-toplevel").rstrip("\n")).resolve()


def _git_names(root: Path) -> Iterator[str]:
    """Yield the files of a repository and of those inside of it."""
    listed = ("ls-files", "-z", "--cached", "--others", "--exclude-standard")
    for name in dict.fromkeys(_git(root, *listed).split("\0")):
        path = root / name
        if not name or not os.path.lexists(path):
            continue  # deleted, but still tracked
        if not path.is_dir() or path.is_symlink():
            yield name
        elif (path / ".git").exists():  # a submodule, or a repository in this one
            yield from (f"{name.rstrip('/')}/{each}" for each in _git_names(path))


def _git(folder: Path, *args: str) -> str:
    argv = ["git", "-C", str(folder), *args]
    found = settings.environment().items()
    env = {name: value for name, value in found if name not in _GIT_VARIABLES}
    try:
        done = subprocess.run(
            argv,
            capture_output=True,
            timeout=GIT_S,
            stdin=subprocess.DEVNULL,
            env=env,
        )
    except subprocess.TimeoutExpired:
        text = f"git {args[0]} took more than {GIT_S:g} s; use --no-sync"
        raise ConfigError(f"{folder}: {text}") from None
    if done.returncode:
        said = done.stderr.decode(errors="replace").strip()[-500:]
        raise ConfigError(f"{folder}: git cannot list the project's files: {said}")
    return os.fsdecode(done.stdout)


def _walk(root: Path) -> Iterator[str]:
    def fail(exc: OSError) -> None:
        raise ConfigError(f"{exc.filename}: cannot be read: {exc.strerror}")

    for folder, folders, files in os.walk(root, onerror=fail):
        inside = Path(folder)
        links = [name for name in folders if (inside / name).is_symlink()]
        folders[:] = [
            name
            for name in folders
            if not _is_skipped(name)
            and name not in links
            and not (inside / name / "pyvenv.cfg").exists()
        ]
        for name in (*files, *links):
            if not _is_skipped(name):
                yield (inside / name).relative_to(root).as_posix()


def _is_skipped(name: str) -> bool:
    hidden = name.startswith(".") or name.endswith(_SKIPPED_ENDINGS)
    return hidden or name in _SKIPPED_FOLDERS


def _sorted(root: Path, names: Iterator[str]) -> list[str]:
    found: list[str] = []
    for name in names:
        found.append(name)
        if len(found) > MAX_FILES:
            text = f"more than {MAX_FILES:,} files; list those that no machine needs"
            text = f"{text} in .gitignore, or use --no-sync"
            raise ConfigError(f"{root}: {text}")
    return sorted(found)


def _home() -> Path | None:
    try:
        return Path.home().resolve()
    except RuntimeError:
        return None
