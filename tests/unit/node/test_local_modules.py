"""The modules of a program are found without importing them."""

from __future__ import annotations

import sysconfig
from pathlib import Path

import msgspec
import pytest

from ringleader.ids import NodeId
from ringleader.node.agent.fingerprint_check import Machine, differences, explain
from ringleader.node.launch.job_fingerprint import job_fingerprint
from ringleader.node.launch.local_modules import MAX_BYTES, find_sources
from ringleader.node.launch.new_interpreter import needs_new_interpreter
from ringleader.node.launch.program import find_program
from ringleader.node.protocol.node_state import (
    MAX_MODULES,
    JobFingerprint,
    NodeState,
)
from ringleader.topology.node_profile import measure

SOURCES = {
    "train.py": "import torch, helper\nfrom net import layers\nraise SystemExit(1)",
    "helper.py": "def late():\n    import deep.er.module",
    "net/__init__.py": "from .sizes import N\n",
    "net/layers.py": "from . import sizes\nfrom .. import nothing\n",
    "net/sizes.py": "N = 1\n",
    "deep/er/module.py": "import helper  # a cycle\nthis is no Python",
    "unused.py": "",
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, text in SOURCES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


def modules_of(script: Path) -> dict[str, str]:
    return find_sources(find_program(str(script), [], is_module=False)).hashes()


def test_direct_indirect_and_relative_imports_are_found(folder: Path) -> None:
    found = modules_of(folder / "train.py")
    assert sorted(found) == [
        "deep/er/module.py",
        "helper.py",
        "net/__init__.py",
        "net/layers.py",
        "net/sizes.py",
    ]


def test_a_module_of_a_package_searches_above_it(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    program = find_program("net.layers", [], is_module=True)
    assert program.root == folder
    assert "net/sizes.py" in find_sources(program).hashes()
    (folder / "net" / "__main__.py").write_text("import helper")
    program = find_program("net", [], is_module=True)
    assert program.root == folder
    assert "helper.py" in find_sources(program).hashes()


def test_installed_packages_are_not_local() -> None:
    installed = Path(sysconfig.get_paths()["stdlib"])
    assert modules_of(installed / "statistics.py") == {}


def test_many_modules_fit_into_a_node_state(tmp_path: Path) -> None:
    names = [f"module_with_quite_a_long_name_{number}" for number in range(100)]
    for name in names:
        (tmp_path / f"{name}.py").touch()
    (tmp_path / "train.py").write_text("\n".join(f"import {name}" for name in names))
    found = modules_of(tmp_path / "train.py")
    assert len(found) == MAX_MODULES
    (tmp_path / f"{names[-1]}.py").write_text("changed = True")
    assert modules_of(tmp_path / "train.py") != found
    fingerprint = JobFingerprint(modules=found)
    data = msgspec.msgpack.encode(fingerprint)
    assert len(data) < 4096
    assert msgspec.msgpack.decode(data, type=JobFingerprint) == fingerprint


def test_a_changed_module_is_named_with_what_to_do(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    program = find_program("train.py", [], is_module=False)
    theirs = job_fingerprint(find_sources(program))
    (folder / "helper.py").write_text("x = 1\r\nimport new\r\n")
    (folder / "new.py").touch()
    ours = job_fingerprint(find_sources(program))
    assert differences(theirs, ours) == ["modules"]
    assert differences(theirs, job_fingerprint(None)) == [], "--any-script"
    state = NodeState(
        name="desk", host="", addresses=[], port=1, profile=measure(), links={}
    )
    other = Machine(NodeId("b" * 52), state, theirs)
    text = explain(["modules"], Machine(NodeId("a" * 52), state, ours), other)
    assert "helper.py differ and deep/er/module.py are missing here" in text
    assert "new.py are missing there" in text
    assert "copy the same files to both, or start both with --any-script" in text
    (folder / "helper.py").write_bytes(SOURCES["helper.py"].encode())
    assert job_fingerprint(find_sources(program)) == theirs
    (folder / "helper.py").write_bytes(
        SOURCES["helper.py"].replace("\n", "\r\n").encode()
    )
    assert job_fingerprint(find_sources(program)) == theirs, "line ends of the platform"


def test_sources_are_read_up_to_a_limit(folder: Path) -> None:
    """Was: up to 256 MiB were parsed, twice, before anything started."""
    (folder / "helper.py").write_text("x = 1\n" * (MAX_BYTES // 6))
    program = find_program(str(folder / "train.py"), [], is_module=False)
    found = find_sources(program)
    assert not found.is_complete
    assert "helper.py" not in found.hashes()
    assert "net/sizes.py" in found.hashes(), "what fits is compared"


@pytest.mark.parametrize(
    ("name", "hides"),
    [("statistics.py", True), ("numpy/__init__.py", True), ("my_tools.py", False)],
)
def test_a_module_named_like_an_installed_one_is_noticed(
    name: str, hides: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Was: a forked worker got the one that torch had imported."""
    file = tmp_path / name
    file.parent.mkdir(exist_ok=True)
    file.touch()
    module = name.partition("/")[0].removesuffix(".py")
    (tmp_path / "train.py").write_text(f"import {module}")
    program = find_program(str(tmp_path / "train.py"), [], is_module=False)
    assert needs_new_interpreter(find_sources(program)) is hides
    monkeypatch.syspath_prepend(tmp_path)
    assert needs_new_interpreter(find_sources(program)) is hides, "it is no other"
