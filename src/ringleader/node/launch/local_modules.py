"""``find_sources``: a program and the modules beside it that it imports.

Found by reading the sources; nothing is imported or run. Modules that a program
imports by a computed name are not found.
"""

from __future__ import annotations

import ast
import hashlib
import site
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from ringleader.node.launch.program import Program
from ringleader.node.protocol.node_state import MAX_MODULES, MAX_NAME

MAX_FILES = 256
MAX_BYTES = 1 << 20
"""Limit for all sources together: parsing more would delay the start."""


def file_hash(data: bytes) -> str:
    """Hash a source file, independent of the platform's line ends."""
    return hashlib.sha256(data.replace(b"\r\n", b"\n")).hexdigest()[:16]


@dataclass(slots=True)
class LocalSources:
    """What was found."""

    root: Path
    """The directory that absolute imports of the program search first."""
    script_hash: str
    trees: list[ast.Module] = field(default_factory=list)
    """The program and its modules, parsed."""
    modules: dict[Path, str] = field(default_factory=dict)
    """Path -> hash of the modules under ``root``, without the program."""
    is_complete: bool = True
    """Whether all of them could be read and parsed, within the limits."""

    def hashes(self) -> dict[str, str]:
        """Return relative path -> hash of the modules, to fit into a node state."""
        named = {
            path.relative_to(self.root).as_posix(): value
            for path, value in self.modules.items()
        }
        return _shortened(dict(sorted(named.items())))


def find_sources(program: Program) -> LocalSources:
    """Read a program and the modules under its root that it imports.

    Indirect imports count; installed packages do not. What exceeds the limits is left
    out, apart from the hash of the program itself.
    """
    path, root = Path(program.path), program.root
    data = path.read_bytes()
    found = LocalSources(root, file_hash(data))
    searches = not _is_installed(root)
    todo, left = [path], MAX_BYTES
    for current in todo:  # which grows
        if current != path:
            data = _read(current, left + 1)
        if len(data) > left or len(found.modules) >= MAX_FILES:
            found.is_complete = False
            continue
        left -= len(data)
        if current != path:
            found.modules[current] = file_hash(data)
        tree = _parse(data)
        if tree is None:
            found.is_complete = False
            continue
        found.trees.append(tree)
        if searches:
            todo += sorted(set(_imported_files(tree, current, root)) - set(todo))
    return found


def _is_installed(root: Path) -> bool:
    """Return whether packages are installed at ``root``: everything would be local."""
    paths = sysconfig.get_paths()
    places = [paths["stdlib"], paths["purelib"], paths["platlib"]]
    places += [*site.getsitepackages(), site.getusersitepackages()]
    return root.resolve() in {Path(place).resolve() for place in places}


def _read(path: Path, size: int) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(size)
    except OSError:
        return b""  # the import will fail, and say so


def _parse(data: bytes) -> ast.Module | None:
    try:
        return ast.parse(data)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None  # the workers will report it


def _imported_files(tree: ast.Module, path: Path, root: Path) -> Iterator[Path]:
    package = path.parent.relative_to(root).parts
    for node in ast.walk(tree):
        for name in _imported_names(node, package):
            yield from _files_of(name, root)


def _imported_names(node: ast.AST, package: tuple[str, ...]) -> list[tuple[str, ...]]:
    if isinstance(node, ast.Import):
        return [tuple(alias.name.split(".")) for alias in node.names]
    if not isinstance(node, ast.ImportFrom):
        return []
    base: tuple[str, ...] = ()
    if node.level:
        base = package[: max(0, len(package) - node.level + 1)]
    if node.module:
        base = (*base, *node.module.split("."))
    return [(*base, alias.name) for alias in node.names]


def _files_of(name: tuple[str, ...], root: Path) -> Iterator[Path]:
    """Yield the files that importing ``name`` runs: packages run their __init__."""
    for length in range(1, len(name) + 1):
        place = root.joinpath(*name[:length])
        for file in (place / "__init__.py", place.with_name(f"{place.name}.py")):
            if file.is_file():
                yield file
                break


def _shortened(hashes: dict[str, str]) -> dict[str, str]:
    """Fit the hashes into a node state; what is too much gets one hash together."""
    kept = {path[-MAX_NAME:]: value for path, value in hashes.items()}
    if len(kept) <= MAX_MODULES:
        return kept
    names = list(kept)
    first, rest = names[: MAX_MODULES - 1], names[MAX_MODULES - 1 :]
    together = file_hash("".join(kept[name] for name in rest).encode())
    return {name: kept[name] for name in first} | {f"{len(rest)} more files": together}
