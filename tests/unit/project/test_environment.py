"""What a project imports is found in its sources and compared between machines."""

from __future__ import annotations

import sys
from importlib import metadata
from pathlib import Path

import msgspec
import pytest

from ringleader.project import (
    EnvironmentFacts,
    EnvironmentNeeds,
    collect,
    compare_environment,
    difference_table,
    environment_needs,
    local_facts,
    needs_in_place,
    refuses,
)
from ringleader.project.environment import UNVERSIONED, NeededDistribution
from ringleader.project.imports import Imports, find_imports

NUMPY = metadata.version("numpy")


def imports_of(root: Path, **content: str) -> Imports:
    names = []
    for name, text in content.items():
        path = root / (name.replace("__", "/").replace("init", "__init__") + ".py")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        names.append(path.relative_to(root).as_posix())
    return find_imports(root, names[0], names, {"elsewhere"}.__contains__)


def install(folder: Path, name: str, module: str, version: str = "1.2.3") -> None:
    """Make an installed distribution, as pip would."""
    info = folder / f"{name.replace('-', '_')}-{version}.dist-info"
    info.mkdir(parents=True)
    (folder / module).mkdir(exist_ok=True)
    (folder / module / "__init__.py").touch()
    (info / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
    )
    (info / "RECORD").write_text(f"{module}/__init__.py,,\n{info.name}/METADATA,,\n")


def test_imports_are_followed_through_the_project(tmp_path: Path) -> None:
    found = imports_of(
        tmp_path,
        scripts__train="import os, helper, model.net as n, numpy.linalg\n"
        "from shared import data\nfrom src_layout import x\n",
        scripts__helper="import yaml",
        model__init="",
        model__net="from . import layers\nfrom .blocks.deep import thing\n",
        model__layers="from torch import nn",
        model__blocks__init="import einops",
        model__blocks__deep="from ...nowhere import x",
        shared="import scipy",
        src__src_layout="import tqdm",
        unused="import sphinx",
        tests__test_train="import pytest",
    )
    tops = {name.partition(".")[0] for name in found.required}
    assert tops == {"numpy", "yaml", "torch", "einops", "scipy", "tqdm"}
    assert not found.optional
    assert found.folders == (".", "src"), "the script's own is where Python looks first"


def test_installed_modules_come_before_those_of_other_folders(tmp_path: Path) -> None:
    found = imports_of(
        tmp_path,
        scripts__train="import elsewhere, sys\n"
        "sys.path.insert(0, '../lib')\nimport tool",
        elsewhere="import not_read",
        lib__tool="import einops",
    )
    assert found.required == {"elsewhere", "einops"}
    assert found.folders == ()
    near = imports_of(tmp_path, train="import elsewhere", elsewhere="import read")
    assert near.required == {"read"}


def test_optional_imports_are_told_apart(tmp_path: Path) -> None:
    found = imports_of(
        tmp_path,
        train="""
from typing import TYPE_CHECKING
if TYPE_CHECKING:
    import only_types
else:
    import at_runtime
try:
    import fast_json
except ImportError:
    import slow_json
try:
    import needed_1
except ValueError:
    pass
try:
    import both
except (AttributeError, ModuleNotFoundError):
    both = None
def later():
    import both
    with open("x") as f:
        import in_function
match 3:
    case 3:
        import in_match
""",
    )
    required = {"at_runtime", "needed_1", "both", "in_function", "in_match"}
    assert found.required == required
    assert found.optional == {"fast_json", "slow_json"}


def test_a_source_that_cannot_be_read_is_left_to_the_workers(tmp_path: Path) -> None:
    deep = "if x:\n  pass\n" + "elif x:\n  pass\n" * 3000 + "else:\n  import numpy\n"
    for text in ("import numpy\nthis is no python", "\x00", "x = " + "(" * 5000, deep):
        assert imports_of(tmp_path, train=text).required <= {"numpy"}
    long = "x = 0" + " + 1" * 900 + "\nimport numpy\n"
    assert imports_of(tmp_path, train=long).required == {"numpy"}


def test_needs_name_distributions_and_facts_find_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    install(here, "opencv-python", "rl_cv2", "4.9.0")
    install(here, "rl-yaml", "rl_yaml", "6.0.1")
    (here / "rl_bare").mkdir()
    (here / "rl_bare" / "__init__.py").touch()
    install(there, "opencv-python-headless", "rl_cv2", "4.9.1")
    (tmp_path / "p").mkdir()
    (tmp_path / "p" / "train.py").write_text(
        "import numpy, rl_cv2, rl_yaml, rl_bare, rl_nowhere, pytest\n"
        "try:\n  import rl_maybe\nexcept ImportError: pass\n"
    )
    project = collect(tmp_path / "p" / "train.py")
    before = list(sys.path)
    monkeypatch.setattr(sys, "path", [*before, str(here)])
    needs = environment_needs(project)
    versions = {each.name: each.version for each in needs.distributions}
    assert versions == {
        "numpy": NUMPY,
        "opencv-python": "4.9.0",
        "rl-yaml": "6.0.1",
        "rl_bare": UNVERSIONED,
        "rl_nowhere": "",
        "rl_maybe": "",
        "pytest": metadata.version("pytest"),
        "torch": metadata.version("torch"),
    }
    same = compare_environment(needs, local_facts(needs))
    assert [(d.what, d.refuses) for d in same] == [
        ("rl_nowhere", True),
        ("rl_maybe", False),
    ]
    monkeypatch.setattr(sys, "path", [*before, str(there)])
    sent = msgspec.json.decode(msgspec.json.encode(needs), type=EnvironmentNeeds)
    found = compare_environment(sent, local_facts(sent))
    assert {(d.what, d.found, d.refuses) for d in found} == {
        ("opencv-python", "4.9.1", False),  # a patch release, of another name
        ("rl-yaml", "missing", True),
        ("rl_bare", "missing", True),
        ("rl_nowhere", "missing", True),
        ("rl_maybe", "missing", False),
    }


def test_files_that_do_not_travel_have_needs_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "train.py").write_text("import helper, rl_nowhere")
    (tmp_path / "helper.py").write_text("import numpy")
    folder = needs_in_place(tmp_path / "train.py")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert needs_in_place(tmp_path / "train.py") == folder
    assert {d.name for d in folder.distributions} == {"numpy", "rl_nowhere", "torch"}


def test_versions_are_compared_by_major_and_minor() -> None:
    def needs(version: str, *, is_optional: bool = False) -> EnvironmentNeeds:
        needed = NeededDistribution("torch", version, ("torch",), is_optional)
        return EnvironmentNeeds("3.12.1", "5.1", (needed,))

    def facts(version: str, python: str = "3.12.4") -> EnvironmentFacts:
        return EnvironmentFacts(python, "5.1", {"torch": version} if version else {})

    assert not compare_environment(needs("2.13.0"), facts("2.13.0"))
    assert not refuses(compare_environment(needs("2.13.0+cu126"), facts("2.13.1+cpu")))
    assert refuses(compare_environment(needs("2.13.0"), facts("2.12.9")))
    assert refuses(compare_environment(needs("2.13.0"), facts("")))
    assert not refuses(compare_environment(needs("2.1", is_optional=True), facts("")))
    other = compare_environment(needs("2.13.0"), facts("2.13.0", python="3.11.9"))
    assert refuses(other)
    rows = {"studio": compare_environment(needs("2.13.0+cpu"), facts("")), "pi": other}
    assert difference_table(rows) == (
        "machine  what    needed      found    what to type there\n"
        'studio   torch   2.13.0+cpu  missing  pip install "torch==2.13.0"\n'
        "pi       Python  3.12.1      3.11.9   "
        "install Python 3.12 and ringleader with it"
    )


def test_facts_from_another_machine_are_bounded() -> None:
    for bad in (
        {"python": "3\x1b[2J", "ringleader": "5.1", "versions": {}},
        {"python": "3", "ringleader": "5.1", "versions": {"x" * 200: "1"}},
        {
            "python": "3",
            "ringleader": "5",
            "versions": {str(n): "" for n in range(600)},
        },
    ):
        with pytest.raises(msgspec.ValidationError):
            msgspec.convert(bad, EnvironmentFacts)
