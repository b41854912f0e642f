"""``local_modules``: the modules beside a program that it imports, and their hashes.

Found by reading the sources; nothing is imported or run. Modules that a program
imports by a computed name are not found.
"""

from __future__ import annotations

import ast
import hashlib
import site
import sysconfig
from collections.abc import Iterator
from pathlib import Path

from ringleader.node.protocol.node_state import MAX_MODULES, MAX_NAME

MAX_FILES = 256
MAX_FILE_BYTES = 1 << 20
"""Generated sources may be larger; reading them would delay the start."""


def file_hash(data: bytes) -> str:
    """Hash a source file, independent of the platform's line ends."""
    return hashlib.sha256(data.replace(b"\r\n", b"\n")).hexdigest()[:16]


def local_modules(program: Path, root: Path) -> dict[str, str]:
    """Return path -> hash of the modules under ``root`` that ``program`` imports.

    ``root`` is the directory that its absolute imports search first. Indirect imports
    count; installed packages do not.
    """
    if _is_installed(root):
        return {}
    found: dict[Path, bytes] = {}
    todo = [program]
    while todo and len(found) < MAX_FILES:
        path = todo.pop(0)
        if path in found:
            continue
        data = _read(path)
        found[path] = data
        todo += sorted(set(_imported_files(data, path, root)))
    del found[program]
    hashes = {
        path.relative_to(root).as_posix(): file_hash(data)
        for path, data in found.items()
    }
    return _shortened(dict(sorted(hashes.items())))


def _is_installed(root: Path) -> bool:
    """Return whether packages are installed at ``root``: everything would be local."""
    paths = sysconfig.get_paths()
    places = [paths["stdlib"], paths["purelib"], paths["platlib"]]
    places += [*site.getsitepackages(), site.getusersitepackages()]
    return root.resolve() in {Path(place).resolve() for place in places}


def _read(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(MAX_FILE_BYTES)
    except OSError:
        return b""  # the import will fail, and say so


def _imported_files(data: bytes, path: Path, root: Path) -> Iterator[Path]:
    try:
        tree = ast.parse(data)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return  # the workers will report it
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
