"""``find_imports``: the modules that a script needs, by reading its project's sources.

Nothing is imported or run. Modules that a program imports by a computed name are not
found.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path, PurePosixPath

MAX_SOURCES = 2000
MAX_SOURCE_BYTES = 2 << 20
"""Longer sources are generated; parsing them would delay the start."""

_MISSING = {"ImportError", "ModuleNotFoundError", "Exception", "BaseException"}

_HOLDERS = (ast.stmt, ast.excepthandler, ast.match_case)
"""Nodes in which an import can be."""


@dataclass(frozen=True, slots=True)
class Imports:
    """Dotted names of modules outside of the project and the standard library."""

    required: frozenset[str]
    optional: frozenset[str]
    """Imported only where the program goes on without them: in ``try`` with
    ``except ImportError``."""
    folders: tuple[str, ...] = ()
    """Folders of the project, besides the script's, whose modules it imports."""


@dataclass(slots=True)
class _Search:
    """The files that were read, and what they import."""

    sources: frozenset[str]
    """Names of all Python files of the project."""
    roots: tuple[str, ...]
    """Folders in which absolute imports are looked up, with a ``/`` at the end; the
    script's own first."""
    is_elsewhere: Callable[[str], bool]
    todo: list[str]
    used: set[str] = field(default_factory=set)
    """Those roots that were needed, without the first."""
    required: set[str] = field(default_factory=set)
    optional: set[str] = field(default_factory=set)


def find_imports(
    root: Path, script: str, names: Iterable[str], is_elsewhere: Callable[[str], bool]
) -> Imports:
    """Follow the imports of ``script`` through the files ``names`` below ``root``.

    Absolute imports are looked up in the folder of the script, in those above it and in
    ``src``, and last in all folders: a program may change ``sys.path``.
    ``is_elsewhere`` tells whether Python finds a top-level module outside of the
    project, which comes before modules of all folders but the script's own.
    """
    above = [str(folder) for folder in PurePosixPath(script).parents]
    roots = ["" if folder == "." else f"{folder}/" for folder in above]
    sources = frozenset(name for name in names if name.endswith(".py"))
    unique = tuple(dict.fromkeys((*roots, "src/")))
    search = _Search(sources, unique, cache(is_elsewhere), [script])
    for name in search.todo:  # which grows
        tree = _parse(root / name)
        if tree is not None and len(search.todo) <= MAX_SOURCES:
            _follow(search, name, tree)
    return Imports(
        frozenset(search.required),
        frozenset(search.optional - search.required),
        tuple(each.rstrip("/") or "." for each in search.roots if each in search.used),
    )


def _follow(search: _Search, name: str, tree: ast.Module) -> None:
    for node, is_optional in _import_nodes(tree.body):
        for dotted, level in _imported(node):
            if level:
                found = _relative_files(search, name, dotted, level)
            else:
                found = _absolute_files(search, dotted)
            if not found and not level:
                _note(search, dotted, is_optional=is_optional)
            search.todo += [file for file in found if file not in search.todo]


def _note(search: _Search, dotted: str, *, is_optional: bool) -> None:
    top = dotted.partition(".")[0]
    if top not in sys.stdlib_module_names and top not in ("", "ringleader"):
        (search.optional if is_optional else search.required).add(dotted)


def _parse(path: Path) -> ast.Module | None:
    """Return None for what cannot be read: the workers will report it."""
    try:
        with open(path, "rb") as file:
            data = file.read(MAX_SOURCE_BYTES + 1)
        return ast.parse(data) if len(data) <= MAX_SOURCE_BYTES else None
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _import_nodes(
    body: Iterable[ast.AST],
) -> Iterator[tuple[ast.Import | ast.ImportFrom, bool]]:
    """Yield all imports, and whether the program goes on without them."""
    todo: list[tuple[ast.AST, bool]] = [(node, False) for node in body]
    while todo:
        node, is_optional = todo.pop()
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield node, is_optional
            continue
        inner = list(ast.iter_child_nodes(node))
        if isinstance(node, ast.Try):
            # An alternative in a handler is needed only if the first one is missing.
            is_optional |= any(_catches_missing(each) for each in node.handlers)
        elif isinstance(node, ast.If) and _is_for_type_checkers(node.test):
            inner = list(node.orelse)
        todo += [(each, is_optional) for each in inner if isinstance(each, _HOLDERS)]


def _catches_missing(handler: ast.ExceptHandler) -> bool:
    if handler.type is None:
        return True
    caught = (
        handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
    )
    return any(getattr(each, "id", "") in _MISSING for each in caught)


def _is_for_type_checkers(test: ast.expr) -> bool:
    return getattr(test, "id", getattr(test, "attr", "")) == "TYPE_CHECKING"


def _imported(node: ast.Import | ast.ImportFrom) -> list[tuple[str, int]]:
    """Return the dotted names and levels of one statement."""
    if isinstance(node, ast.Import):
        return [(alias.name, 0) for alias in node.names]
    before = f"{node.module}." if node.module else ""
    return [(f"{before}{alias.name}", node.level) for alias in node.names]


def _relative_files(search: _Search, name: str, dotted: str, level: int) -> list[str]:
    parts = PurePosixPath(name).parts[:-level]
    return _files_of(search, "".join(f"{part}/" for part in parts), dotted)


def _absolute_files(search: _Search, dotted: str) -> list[str]:
    top = dotted.partition(".")[0]
    near, *others = search.roots
    if found := _files_of(search, near, dotted):
        return found
    if top in sys.stdlib_module_names or search.is_elsewhere(top):
        return []
    for root in others:
        if found := _files_of(search, root, dotted):
            search.used.add(root)
            return found
    ends = (f"/{top}.py", f"/{top}/__init__.py")
    stray = min((name for name in search.sources if name.endswith(ends)), default="")
    root = stray[: stray.rindex(f"/{top}") + 1] if stray else ""
    return _files_of(search, root, dotted) if stray else []


def _files_of(search: _Search, root: str, dotted: str) -> list[str]:
    """Return the files that importing ``dotted`` runs: packages run ``__init__``."""
    found: list[str] = []
    path = root
    for part in dotted.split("."):
        for file in (f"{path}{part}/__init__.py", f"{path}{part}.py"):
            if file in search.sources:
                found.append(file)
                break
        path = f"{path}{part}/"
    return found
