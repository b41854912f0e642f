"""The structure of the package, as rules that a newcomer can read when they fail.

Each rule is one test that lists every offender. Imports inside functions and for type
checkers count like all others. The layers are a table in tests/kit/layers.py.
"""

from __future__ import annotations

import ast
import gc
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from pathlib import Path

import pytest

from tests.kit.architecture_map import PAGE, with_map
from tests.kit.layers import HEIGHT, PACKAGES, Plane, room_heights

SRC = Path(__file__).parents[1] / "src" / "ringleader"
MODULES = sorted(SRC.rglob("*.py"))

IO = {"socket", "ssl", "select", "selectors", "asyncio", "threading", "multiprocessing"}
IO |= {"subprocess", "signal", "time", "random", "secrets", "os", "io", "pathlib"}
VECTORS = {"torch", "numpy"}
EFFECTS = IO | VECTORS
"""Modules that pure packages may not import."""

HOMES = {
    "typer": {"cli"},
    "rich": {"cli"},
    "matplotlib": {"cli"},
    "mpi4py": {"cli", "transport"},
    "mmap": {"transport"},
    "fcntl": {"identity", "simulation", "transport"},
    "ssl": {
        "identity",
        "transport",
        "node",
        "paramserver",
        "training",
        "dashboard",
        "monitoring",
    },
    "cryptography": {"identity"},
    "spake2": {"identity"},
    "zeroconf": {"discovery"},
    "grpc": {"coordinator", "grpc_server", "transport"},
    "grpc_health": {"coordinator"},
    "grpc_reflection": {"coordinator"},
    "google": {"coordinator", "transport"},
    "sqlite3": {"coordinator"},
    "psutil": {"topology"},
    "msgspec": {
        "decoding",
        "identity",
        "membership",
        "topology",
        "node",
        "monitoring",
        "doctor",
        "paramserver",
        "checkpoint",
        "dashboard",
        "data",
        "jobs",
        "project",
        "rpc",
        "training",
        "wire",
    },
    "fsspec": {"checkpoint"},
    "starlette": {"paramserver"},
    "uvicorn": {"paramserver"},
    "h11": {"paramserver"},
    "httpx2": {"paramserver"},
    "safetensors": {"paramserver", "training"},
    "backports": {"paramserver"},
    "pickle": {"testing"},
    "torch": {
        "codec",
        "engine",
        "groups",
        "compression",
        "backend",
        "checkpoint",
        "data",
        "parallel",
        "paramserver",
        "rpc",
        "simulation",
        "node",
        "testing",
        "tracing",
        "training",
        "cli",
    },
}
"""Who may import what; above all, nothing from the network is ever unpickled."""

LIMIT_LINES = 1500
"""One concept is one file; beyond this it is more than one."""

BANNED_FOLDERS = {"utils", "util", "common", "core", "shared", "base", "helpers"}


def package_of(path: Path) -> str:
    """The package, or top-level module, that a file belongs to."""
    return path.relative_to(SRC).parts[0].removesuffix(".py")


def room_of(path: Path) -> str:
    """The sub-package that a file belongs to, or nothing."""
    parts = path.relative_to(SRC).parts
    return parts[1] if len(parts) > 2 else ""


def dotted(path: Path) -> str:
    """The name a file is imported by."""
    parts = path.relative_to(SRC.parent).with_suffix("").parts
    return ".".join(parts).removesuffix(".__init__")


def relative(path: Path) -> str:
    return path.relative_to(SRC).as_posix()


NAMES = {dotted(path): path for path in MODULES}


@pytest.fixture(scope="module", autouse=True)
def collect_no_garbage() -> Iterator[None]:
    """To look for some among all that is parsed takes longer than to parse it."""
    gc.disable()
    yield
    for known in (parse, nodes):
        known.cache_clear()
    gc.enable()


@cache
def parse(path: Path) -> ast.Module:
    return ast.parse(path.read_text(), str(path))


@cache
def nodes(path: Path) -> tuple[ast.AST, ...]:
    return tuple(ast.walk(parse(path)))


@cache
def imports(path: Path) -> frozenset[str]:
    """Full names of all modules that a file imports, wherever it does so."""
    return frozenset(_imports(path))


def _imports(path: Path) -> Iterator[str]:
    for node in nodes(path):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                whole = f"{node.module}.{alias.name}"
                yield whole if whole in NAMES else str(node.module)


def ours(path: Path) -> list[Path]:
    """Files of ringleader that a file imports, without the facade and itself."""
    names = imports(path) - {"ringleader", dotted(path)}
    return sorted(NAMES[name] for name in names if name in NAMES)


def frameworks(path: Path) -> set[str]:
    """Top-level names of what a file imports."""
    return {name.split(".")[0] for name in imports(path)}


def offenders(rule: Callable[[Path], Iterable[str]]) -> str:
    """One line for each file and complaint of ``rule``."""
    return "".join(
        f"\n  {relative(path)}: {complaint}"
        for path in MODULES
        for complaint in rule(path)
    )


def test_every_package_is_in_the_table() -> None:
    advice = "list it in tests/kit/layers.py, as low as it can be"
    assert {package_of(path) for path in MODULES} == PACKAGES.keys(), advice
    rooms = {(package_of(path), room_of(path)) for path in MODULES if room_of(path)}
    listed = {(p.name, name) for p in PACKAGES.values() for name, _ in p.rooms}
    assert rooms == listed, advice
    for package in PACKAGES.values():
        order = room_heights(package)
        assert not order or order.keys() == {name for name, _ in package.rooms}


def test_the_map_of_the_documentation_is_current() -> None:
    text = PAGE.read_text()
    assert text == with_map(text), "run: make map"


def test_imports_point_down() -> None:
    def rule(path: Path) -> Iterator[str]:
        me = package_of(path)
        if "ringleader" in imports(path):
            yield "imports the facade; import from the module itself"
        for other in ours(path):
            name = package_of(other)
            if name != me and HEIGHT[name] >= HEIGHT[me]:
                yield f"{me} may import only lower layers, not {relative(other)}"

    assert not (found := offenders(rule)), found


def test_imports_between_sub_packages_point_down() -> None:
    def rule(path: Path) -> Iterator[str]:
        order = room_heights(PACKAGES[package_of(path)])
        me = room_of(path)
        for other in ours(path):
            name = room_of(other)
            is_foreign = package_of(other) != package_of(path) or name == me
            if is_foreign or me not in order or name not in order:
                continue
            if order[name] >= order[me]:
                yield f"{me} may not import {relative(other)}"

    assert not (found := offenders(rule)), found


def test_no_product_module_imports_the_test_kit() -> None:
    def rule(path: Path) -> Iterator[str]:
        if package_of(path) != "testing":
            yield from (n for n in imports(path) if n.startswith("ringleader.testing"))

    found = offenders(rule)
    assert not found, f"only tests may import ringleader.testing:{found}"


def test_no_module_imports_itself_by_a_detour() -> None:
    graph = {name: [dotted(p) for p in ours(path)] for name, path in NAMES.items()}
    done: set[str] = set()
    found: list[str] = []

    def visit(name: str, trail: tuple[str, ...]) -> None:
        if name in trail:
            found.append(" -> ".join((*trail[trail.index(name) :], name)))
        elif name not in done:
            for other in graph[name]:
                visit(other, (*trail, name))
            done.add(name)

    for name in graph:
        visit(name, ())
    assert not found, "\n  ".join(["cycles, lazy and typing imports counted:", *found])


def test_pure_packages_touch_nothing() -> None:
    def rule(path: Path) -> Iterable[str]:
        package = PACKAGES[package_of(path)]
        is_pure = package.is_pure or room_of(path) in package.pure_rooms
        return frameworks(path) & EFFECTS if is_pure else ()

    found = offenders(rule)
    assert not found, f"a pure package decides and has no effects:{found}"


def test_frameworks_stay_in_their_package() -> None:
    def rule(path: Path) -> Iterator[str]:
        for name in frameworks(path) & HOMES.keys():
            if package_of(path) not in HOMES[name]:
                yield f"{name} belongs into {sorted(HOMES[name])}"

    assert not (found := offenders(rule)), found


def test_types_are_decoded_where_threads_take_turns() -> None:
    def rule(path: Path) -> Iterator[str]:
        if package_of(path) == "decoding":
            return
        for node in nodes(path):
            if (
                isinstance(node, ast.Call)
                and getattr(node.func, "attr", "") == "decode"
                and any(keyword.arg == "type" for keyword in node.keywords)
            ):
                yield f"line {node.lineno}: use ringleader.decoding"

    assert not (found := offenders(rule)), found


def test_only_the_settings_read_the_environment() -> None:
    def rule(path: Path) -> Iterator[str]:
        me = package_of(path)
        if HEIGHT[me] >= HEIGHT["cli"] or me == "settings":
            return
        for node in nodes(path):
            if getattr(node, "attr", getattr(node, "id", "")) in ("environ", "getenv"):
                yield f"line {node.lineno}"  # type: ignore[attr-defined]

    found = offenders(rule)
    assert not found, f"settings.py alone reads the environment; ask it:{found}"


def test_base_classes_of_errors_are_never_raised() -> None:
    def rule(path: Path) -> Iterator[str]:
        for node in nodes(path):
            if isinstance(node, ast.Call):
                name = getattr(node.func, "id", getattr(node.func, "attr", ""))
                if name in ("RingleaderError", "PeerError", "RunError"):
                    yield f"line {node.lineno}: use a class that says what to do"

    assert not (found := offenders(rule)), found


def test_data_plane_and_control_plane_meet_in_two_packages() -> None:
    def rule(path: Path) -> Iterator[str]:
        mine = PACKAGES[package_of(path)].plane
        for other in ours(path):
            theirs = PACKAGES[package_of(other)].plane
            if {mine, theirs} == {Plane.DATA, Plane.CONTROL}:
                yield f"imports {relative(other)} of the {theirs} plane"

    found = offenders(rule)
    assert not found, (
        f"data plane and control plane meet in node/ and training/ only:{found}"
    )


def test_a_module_holds_one_concept() -> None:
    def rule(path: Path) -> Iterator[str]:
        lines = len(path.read_text().splitlines())
        if lines > LIMIT_LINES:
            yield f"{lines} lines of {LIMIT_LINES}: more than one concept"

    assert not (found := offenders(rule)), found


def test_a_module_says_what_it_is_for() -> None:
    def rule(path: Path) -> Iterator[str]:
        if path.read_text().strip() and not ast.get_docstring(parse(path)):
            yield "needs a docstring: one sentence about its purpose"

    assert not (found := offenders(rule)), found


def test_folders_are_words_of_the_glossary() -> None:
    folders = {path.name for path in SRC.rglob("*") if path.is_dir()}
    vague = folders & BANNED_FOLDERS
    assert not vague, f"{sorted(vague)} says nothing; name the thing it holds"
