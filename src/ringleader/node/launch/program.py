"""``Program``: what the workers run, a script or a module, and where its source is."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path

from ringleader.errors import ConfigError
from ringleader.node.launch import worker_main
from ringleader.settings.job import job_settings


@dataclass(frozen=True, slots=True)
class Program:
    """A program as the user named it, and the file that it is in."""

    name: str
    """Path of a script, or name of a module."""
    path: str
    is_module: bool
    args: list[str]

    @property
    def root(self) -> Path:
        """The directory that absolute imports of the program search first."""
        folders = Path(self.path).parents
        if not self.is_module:
            return folders[0]
        is_package = Path(self.path).stem == "__main__" and not self.name.endswith(
            "__main__"
        )
        return folders[self.name.count(".") + is_package]

    def command(self) -> list[str]:
        """Return the arguments of the Python interpreter that run it."""
        start = ["-m", self.name] if self.is_module else [self.name]
        return ["-u", worker_main.__file__, *start, *self.args]


def find_program(name: str, args: list[str], *, is_module: bool) -> Program:
    """Find a script, or a module as ``python -m`` would; imports nothing.

    Raises ``ConfigError`` if there is none.
    """
    path = _find_module(name) if is_module else name
    if not os.path.isfile(path):
        hint = ""
        if not is_module and "/" not in name and _find_module(name):
            hint = f"; to run the module {name}, write -m {name}"
        kind = "module" if is_module else "script"
        raise ConfigError(f"{kind} {name!r} not found in {Path.cwd()}{hint}")
    return Program(name, path, is_module, args)


def _find_module(name: str) -> str:
    """Return the file of a module or of a package's ``__main__``; empty if none."""
    folders = job_settings().imports.split(os.pathsep)
    search: list[str] | None = [os.getcwd(), *filter(None, folders), *sys.path]
    spec: ModuleSpec | None = None
    parts = name.split(".")
    for length in range(1, len(parts) + 1):
        if search is None:
            return ""  # the part before is not a package
        spec = PathFinder.find_spec(".".join(parts[:length]), search)
        if spec is None:
            return ""
        search = _places(spec)
    if spec is not None and search is not None:
        spec = PathFinder.find_spec(f"{name}.__main__", search)
    return str(spec.origin or "") if spec is not None else ""


def _places(spec: ModuleSpec) -> list[str] | None:
    found = spec.submodule_search_locations
    return None if found is None else list(found)
