"""The structure of the package, as rules that a newcomer can read when they fail.

Layers point down: a package may import what lies in a lower row, never its own row or
a higher one. Pure packages decide and touch nothing. Files stay short.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

SRC = Path(__file__).parents[1] / "src" / "ringleader"
MODULES = sorted(SRC.rglob("*.py"))

ROWS = (
    "errors ids | deadline | wire collectives codec settings | identity | transport "
    "| engine | groups | backend | compression | parallel paramserver | membership "
    "| topology simulation | discovery | node | doctor | cli | testing | __init__"
)
HEIGHT = {n: i for i, row in enumerate(ROWS.split("|")) for n in row.split()}

IO = {"socket", "ssl", "select", "selectors", "asyncio", "threading", "multiprocessing"}
IO |= {"subprocess", "signal", "time", "random", "secrets", "os", "io", "pathlib"}
VECTORS = {"torch", "numpy"}
PURE = dict.fromkeys(("wire", "collectives", "membership"), IO | VECTORS)
"""What the packages that only decide may not even see."""

HOMES = {
    "typer": {"cli"},
    "rich": {"cli"},
    "matplotlib": {"cli"},
    "sklearn": {"cli"},
    "mpi4py": {"cli"},
    "mmap": {"transport"},
    "fcntl": {"identity", "transport"},
    "ssl": {"identity", "transport", "node", "paramserver"},
    "cryptography": {"identity"},
    "spake2": {"identity"},
    "zeroconf": {"discovery"},
    "psutil": {"topology"},
    "msgspec": {
        "identity",
        "membership",
        "topology",
        "node",
        "doctor",
        "paramserver",
    },
    "starlette": {"paramserver"},
    "uvicorn": {"paramserver"},
    "h11": {"paramserver"},
    "httpx2": {"paramserver"},
    "safetensors": {"paramserver"},
    "backports": {"paramserver"},
    "pickle": {"testing"},
    "torch": {
        "codec",
        "engine",
        "groups",
        "compression",
        "backend",
        "parallel",
        "paramserver",
        "node",
        "testing",
        "cli",
    },
}
"""Who may import what; above all, nothing from the network is ever unpickled."""

LIMIT_LINES = 300
LONGER = {
    "backend/process_group.py": (570, "one method per operation that torch knows"),
    "groups/group.py": (550, "the whole public surface of a group, mostly signatures"),
    "groups/executor.py": (435, "one dispatch over all operations and algorithms"),
    "groups/runner.py": (360, "all ways in which an operation begins and ends"),
    "groups/call.py": (455, "one constructor per operation"),
    "transport/mesh.py": (390, "both sides of one handshake are read together"),
    "testing/processes.py": (360, "the two sides of a fork are read together"),
}
"""Files beyond the limit: how far, and why they are not split."""

BANNED_FOLDERS = {"utils", "util", "common", "core", "shared", "base", "helpers"}


def place(path: Path) -> str:
    """The package of the row table that a file belongs to."""
    return path.relative_to(SRC).parts[0].removesuffix(".py")


def dotted(path: Path) -> str:
    """The name a file is imported by."""
    parts = path.relative_to(SRC.parent).with_suffix("").parts
    return ".".join(parts).removesuffix(".__init__")


NAMES = {dotted(path): path for path in MODULES}


def imports(tree: ast.AST) -> Iterator[str]:
    """Every module that is imported, by its full name."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                whole = f"{node.module}.{alias.name}"
                yield whole if whole in NAMES else str(node.module)


def parse(path: Path) -> ast.Module:
    return ast.parse(path.read_text(), str(path))


def relative(path: Path) -> str:
    return path.relative_to(SRC).as_posix()


def test_every_package_has_a_row() -> None:
    here = {place(path) for path in MODULES}
    assert here == HEIGHT.keys(), "add the package to ROWS, as low as it can be"


@pytest.mark.parametrize("path", MODULES, ids=relative)
def test_module_keeps_its_place(path: Path) -> None:
    me = place(path)
    names = set(imports(parse(path)))
    others = {n.split(".")[1] for n in names if n.startswith("ringleader.")} - {me}
    above = {n for n in others if HEIGHT[n] >= HEIGHT[me]}
    assert "ringleader" not in names, "import from the module itself, not the facade"
    assert not above, f"{me} may only import what lies below it, not {sorted(above)}"


def test_no_product_module_imports_the_test_kit() -> None:
    product = [path for path in MODULES if place(path) != "testing"]
    offenders = [
        relative(path)
        for path in product
        if any(name.startswith("ringleader.testing") for name in imports(parse(path)))
    ]
    assert not offenders, f"only tests may import ringleader.testing: {offenders}"


@pytest.mark.parametrize(
    "path", [path for path in MODULES if place(path) in PURE], ids=relative
)
def test_pure_packages_touch_nothing(path: Path) -> None:
    effects = {name.split(".")[0] for name in imports(parse(path))} & PURE[place(path)]
    assert not effects, f"{place(path)} decides; it may not touch {sorted(effects)}"


@pytest.mark.parametrize("path", MODULES, ids=relative)
def test_frameworks_stay_in_their_package(path: Path) -> None:
    for name in {name.split(".")[0] for name in imports(parse(path))} & HOMES.keys():
        allowed = HOMES[name]
        assert place(path) in allowed, f"{name} belongs into {sorted(allowed)}"


@pytest.mark.parametrize("path", MODULES, ids=relative)
def test_only_the_settings_read_the_environment(path: Path) -> None:
    if HEIGHT[place(path)] >= HEIGHT["cli"] or place(path) == "settings":
        return
    for node in ast.walk(parse(path)):
        name = getattr(node, "attr", getattr(node, "id", ""))
        assert name not in ("environ", "getenv"), "settings.py is the reader; ask it"


CONTROL = {"membership", "topology", "discovery"}
"""The control plane; it and the data plane know nothing of each other."""
DATA = {"wire", "collectives", "transport", "engine", "groups"}
DATA |= {"compression", "backend", "parallel"}


@pytest.mark.parametrize("path", MODULES, ids=relative)
def test_data_plane_and_control_plane_meet_in_the_node(path: Path) -> None:
    mine = place(path)
    other = DATA if mine in CONTROL else CONTROL if mine in DATA else set()
    names = {n.split(".")[1] for n in imports(parse(path)) if "ringleader." in n}
    assert not names & other, "data plane and control plane meet in node/, not here"


def top_level_imports(path: Path) -> set[str]:
    """Our modules that are imported when ``path`` is: not those inside functions."""
    tree = parse(path)
    body = [n for n in tree.body if isinstance(n, ast.Import | ast.ImportFrom)]
    names = imports(ast.Module(body=list(body), type_ignores=[]))
    return {name for name in names if name in NAMES and name != "ringleader"}


def test_no_module_imports_itself_by_a_detour() -> None:
    graph = {name: top_level_imports(path) for name, path in NAMES.items()}
    done: set[str] = set()

    def visit(name: str, trail: tuple[str, ...]) -> None:
        assert name not in trail, f"a cycle: {' -> '.join((*trail, name))}"
        if name not in done:
            for other in sorted(graph[name]):
                visit(other, (*trail, name))
            done.add(name)

    for name in graph:
        visit(name, ())


@pytest.mark.parametrize("path", MODULES, ids=relative)
def test_a_module_is_read_in_five_minutes(path: Path) -> None:
    limit, reason = LONGER.get(relative(path), (LIMIT_LINES, ""))
    lines = len(path.read_text().splitlines())
    assert lines <= limit, f"{lines} lines of {limit}: split it, or say why in LONGER"
    assert not reason or lines > LIMIT_LINES, "short again: remove it from LONGER"


def test_files_beyond_the_limit_exist() -> None:
    assert LONGER.keys() <= {relative(path) for path in MODULES}


@pytest.mark.parametrize("path", MODULES, ids=relative)
def test_a_module_says_what_it_is_for(path: Path) -> None:
    text = ast.get_docstring(parse(path))
    assert text or not path.read_text().strip(), "one sentence: what is this file for?"


def test_folders_are_words_of_the_glossary() -> None:
    folders = {path.name for path in SRC.rglob("*") if path.is_dir()}
    vague = folders & BANNED_FOLDERS
    assert not vague, f"{sorted(vague)} says nothing; name the thing it holds"
