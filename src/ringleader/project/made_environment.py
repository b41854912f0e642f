"""``make_environment``: a virtual environment with the packages that a project lists.

It is kept under the hash of that list, and of all that the list takes from the disk, so
that the next job has it at once. What the list does not name comes from the environment
of the agent: torch and ringleader itself above all, which are too large to install
again.
"""

from __future__ import annotations

import os
import shutil
import sys
import sysconfig
import time
from collections.abc import Container, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import msgspec

from ringleader import settings
from ringleader.deadline import Deadline
from ringleader.decoding import from_json
from ringleader.errors import ConfigError
from ringleader.identity.storage.home import Home
from ringleader.project import facts_process
from ringleader.project.command import Command
from ringleader.project.environment import EnvironmentFacts, EnvironmentNeeds
from ringleader.project.environment_recipe import Recipe, find_recipe

FOLDER = "environments"
KEPT = 5
KEPT_S = 3 * 86400.0
"""An environment is deleted if no job began with it for so long and more are kept: a
list with ``./pkg`` makes another one for each change there."""
HALF_MADE_S = 86400.0
"""No environment takes a day to make."""

_COMPLETE = "complete"
_LOCK_POLL_S = 0.2
_FACTS_S = 120.0


@dataclass(frozen=True, slots=True)
class MadeEnvironment:
    """A virtual environment below ``folder``."""

    folder: Path

    @property
    def python(self) -> Path:
        """Its interpreter."""
        if sys.platform == "win32":
            return self.folder / "Scripts" / "python.exe"
        return self.folder / "bin" / "python"

    @property
    def is_complete(self) -> bool:
        """Whether everything was installed."""
        return (self.folder / _COMPLETE).exists()


def make_environment(
    folder: Path,
    script: str,
    home: Path,
    deadline: Deadline,
    in_use: Container[Path] = (),
) -> Path:
    """Return the interpreter of the environment that the project in ``folder`` lists.

    It is made with uv if that is installed, else with pip. Old ones are deleted, but
    for those whose interpreters are ``in_use``. Raises ConfigError with the
    last words of the installer, or if there is no list or no time left.
    """
    recipe = find_recipe(folder, script)
    kept = Home(home / FOLDER)
    made = MadeEnvironment(kept.path / recipe.digest)
    with _locked(kept, recipe.digest, deadline):
        if not made.is_complete:
            shutil.rmtree(made.folder, ignore_errors=True)  # of a killed agent
            delete_unused(kept.path, in_use)
            try:
                _make(made, recipe, deadline)
            except BaseException:
                shutil.rmtree(made.folder, ignore_errors=True)
                raise
        (made.folder / _COMPLETE).touch()
    return made.python


def facts_of(
    python: Path, needs: EnvironmentNeeds, deadline: Deadline
) -> EnvironmentFacts:
    """Return what another environment of this machine has; raises ConfigError."""
    command = Command(
        argv=[str(python), "-P", "-m", facts_process.__name__],
        purpose="the versions in the job's environment",
        stdin=msgspec.json.encode(needs),
    )
    said = command.run(deadline.within(_FACTS_S))
    return from_json(said, EnvironmentFacts)


def _make(made: MadeEnvironment, recipe: Recipe, deadline: Deadline) -> None:
    uv = shutil.which("uv")
    if uv is None and recipe.kind == "pylock.toml":
        text = "pip cannot install from it; install uv on this machine"
        raise ConfigError(f"--sync-env: {recipe.kind}: {text}: pip install uv")
    if recipe.elsewhere and (uv is None or recipe.kind != "uv.lock"):
        text = "come from where tool.uv.sources says, and only uv knows; install uv on"
        text = f"{', '.join(recipe.elsewhere)} {text} all machines, and type: uv lock"
        raise ConfigError(f"--sync-env: pyproject.toml: {text}")
    without_pip = ["--without-pip"] if uv else []
    command = [sys.executable, "-P", "-m", "venv", *without_pip, str(made.folder)]
    _install(command, recipe, deadline, {})
    _add_our_packages(made)
    if uv is None:
        command = [str(made.python), "-m", "pip", "install", "--no-input"]
        command += ["--disable-pip-version-check", "-q"]
    else:
        command = [uv, "pip", "install", "--python", str(made.python), "-q"]
    if recipe.kind == "uv.lock" and uv is not None:
        options = ("--frozen", "--inexact", "--no-dev", "--no-install-project", "-q")
        variables = {"UV_PROJECT_ENVIRONMENT": str(made.folder)}
        _install([uv, "sync", *options, "--no-editable"], recipe, deadline, variables)
    elif recipe.kind in ("requirements.txt", "pylock.toml"):
        _install([*command, "-r", recipe.kind], recipe, deadline, {})
    elif recipe.dependencies:
        _install([*command, "--", *recipe.dependencies], recipe, deadline, {})


def _install(
    command: Sequence[str],
    recipe: Recipe,
    deadline: Deadline,
    variables: dict[str, str],
) -> None:
    unwanted = ("PYTHONHOME", "VIRTUAL_ENV", "PIP_TARGET", "PIP_PREFIX", "PIP_USER")
    mine = {n: v for n, v in settings.environment().items() if n not in unwanted}
    Command(
        argv=command,
        purpose=f"--sync-env: {recipe.kind}",
        folder=recipe.path.parent,
        environment={**mine, **variables},
    ).run(deadline)


def _add_our_packages(made: MadeEnvironment) -> None:
    """Let the environment find what the agent has, after its own packages."""
    paths = sysconfig.get_paths()
    standard = {paths["stdlib"], paths["platstdlib"]}
    ours = [
        path
        for path in sys.path
        if os.path.isdir(path)
        and path not in standard
        and not path.endswith("lib-dynload")
    ]
    ours.append(str(Path(__file__).parents[2]))  # an editable install may be a hook
    scheme = {"base": str(made.folder), "platbase": str(made.folder)}
    place = Path(sysconfig.get_path("purelib", "venv", scheme))
    lines = "".join(f"{path}\n" for path in dict.fromkeys(ours))
    (place / "_ringleader.pth").write_text(lines, encoding="utf-8")


@contextmanager
def _locked(kept: Home, name: str, deadline: Deadline) -> Iterator[None]:
    lock = kept.path / f"{name}.lock"
    try:
        kept.path.mkdir(parents=True, exist_ok=True, mode=0o700)
        lock.touch(mode=0o600)
    except OSError as exc:
        raise ConfigError(f"{lock}: cannot be written: {exc.strerror}") from exc
    while (held := kept.try_lock(lock.name)) is None:
        if deadline.is_over():
            text = (
                f"another job still makes this environment after {deadline.after_s:g} s"
            )
            raise ConfigError(f"--sync-env: {text}; try again")
        time.sleep(min(_LOCK_POLL_S, deadline.wait_s()))
    try:
        yield
    finally:
        held.close()


def delete_unused(path: Path, in_use: Container[Path] = ()) -> None:
    """Delete environments that were not used for long, except for the newest and those
    ``in_use``, and what killed agents have left half made."""
    used: list[tuple[float, Path]] = []
    for each in path.glob(f"*/{_COMPLETE}"):
        with suppress(OSError):
            used.append((each.stat().st_mtime, each.parent))
    for used_s, folder in sorted(used, reverse=True)[KEPT:]:
        is_needed = MadeEnvironment(folder).python in in_use
        if used_s < time.time() - KEPT_S and not is_needed:
            shutil.rmtree(folder, ignore_errors=True)
    for folder in path.iterdir():
        with suppress(OSError):
            is_old = folder.stat().st_mtime < time.time() - HALF_MADE_S
            if is_old and folder.is_dir() and not (folder / _COMPLETE).exists():
                shutil.rmtree(folder, ignore_errors=True)
