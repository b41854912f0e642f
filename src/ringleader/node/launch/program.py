"""``Program``: what the workers run, a script or a module, and where its source is."""

from __future__ import annotations

import os
import re
import shlex
import sys
from dataclasses import dataclass
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path

from ringleader.errors import ConfigError
from ringleader.node.launch import worker_main
from ringleader.settings.job import job_settings

_INTERPRETER = re.compile(r"pythonw?[0-9.]*(\.exe)?|pypy[0-9.]*")
_LAUNCHERS = ("torchrun", "accelerate", "mpirun", "mpiexec", "srun", "deepspeed")


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

    @property
    def imports(self) -> str:
        """Folder that Python does not search by itself; empty: there is none."""
        return str(self.root) if self.is_module and self.root == _source() else ""

    def command(self) -> list[str]:
        """Return the arguments of the Python interpreter that run it."""
        start = ["-m", self.name] if self.is_module else [self.name]
        return ["-u", worker_main.__file__, *start, *self.args]


def find_program(name: str, args: list[str], *, is_module: bool) -> Program:
    """Find a script, or a module as ``python -m`` would; imports nothing.

    A module is also looked for in ``src``, as the imports of a project's scripts are.
    Raises ``ConfigError`` if there is none.
    """
    path = _find_module(name) if is_module else name
    if not is_module and (hint := _no_script(name, args)):
        raise ConfigError(hint)
    if not os.path.isfile(path):
        hint = ""
        if not is_module and "/" not in name and _find_module(name):
            hint = f"; to run the module {name}, write -m {name}"
        kind = "module" if is_module else "script"
        where = f"{Path.cwd()}{' or its src' if is_module else ''}"
        raise ConfigError(f"{kind} {name!r} not found in {where}{hint}")
    return Program(name, path, is_module, args)


def _no_script(name: str, args: list[str]) -> str:
    """Return what to type instead of a name that cannot be a script; else ''."""
    path = Path(name)
    if _INTERPRETER.fullmatch(path.name):
        rest = shlex.join(args) if args and args[0] != "-c" else "train.py"
        return f"{path.name}: ringleader starts Python itself; ringleader run {rest}"
    if path.name in _LAUNCHERS:
        text = f"{name}: ringleader run takes its place"
        return f"{text}; leave it out, with its options: ringleader run train.py"
    if name == "-":
        text = "-: a program from standard input has no file that the others could get"
        return f"{text}; save it: ringleader run train.py"
    if path.suffix == ".ipynb":
        made = path.with_suffix(".py").name
        text = f"{name}: a notebook is no program; make one, and look through it"
        return f"{text}: jupyter nbconvert --to script {name}; ringleader run {made}"
    if path.is_dir():
        scripts = sorted(each.name for each in path.glob("*.py"))
        first = "__main__.py" if "__main__.py" in scripts else (*scripts, "train.py")[0]
        return f"{name} is a folder; name the script: ringleader run {path / first}"
    return ""


def _find_module(name: str) -> str:
    """Return the file of a module or of a package's ``__main__``; empty if none."""
    folders = job_settings().imports.split(os.pathsep)
    places = [os.getcwd(), *filter(None, folders), str(_source()), *sys.path]
    search: list[str] | None = places
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


def _source() -> Path:
    return Path.cwd() / "src"


def _places(spec: ModuleSpec) -> list[str] | None:
    found = spec.submodule_search_locations
    return None if found is None else list(found)
