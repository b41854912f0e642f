"""``find_program``: scripts and modules are found as Python would find them."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from ringleader.errors import ConfigError
from ringleader.node.launch import worker_main
from ringleader.node.launch.program import find_program

WORKER = worker_main.__file__


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a working directory with a script and a package."""
    (tmp_path / "train.py").write_text("")
    for name in ("pack", "pack/sub"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("raise SystemExit('imported')")
    (tmp_path / "pack" / "tool.py").write_text("")
    (tmp_path / "pack" / "sub" / "__main__.py").write_text("")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("name", "file"),
    [
        ("train", "train.py"),
        ("pack.tool", "pack/tool.py"),
        ("pack.sub", "pack/sub/__main__.py"),
    ],
)
def test_a_module_is_found_without_importing_anything(
    folder: Path, name: str, file: str
) -> None:
    found = find_program(name, ["--lr", "1"], is_module=True)
    assert Path(found.path) == folder / file
    assert found.command() == ["-u", WORKER, "-m", name, "--lr", "1"]
    assert "pack" not in sys.modules


@pytest.mark.parametrize("is_package", [False, True])
def test_a_module_of_src_is_found_and_its_folder_told(
    folder: Path, is_package: bool
) -> None:
    part = "job" if is_package else "job.train"
    made = folder / "src" / "job" / ("__main__.py" if is_package else "train.py")
    made.parent.mkdir(parents=True)
    made.write_text("")
    found = find_program(part, [], is_module=True)
    assert Path(found.path) == made
    assert found.imports == str(folder / "src")
    beside = find_program("pack.tool", [], is_module=True)
    assert beside.imports == "", "Python searches the folder itself"


@pytest.mark.parametrize("name", ["absent", "pack.absent", "pack", "train.py"])
def test_a_module_that_cannot_run_is_refused(folder: Path, name: str) -> None:
    with pytest.raises(ConfigError, match=f"module '{name}' not found in {folder}"):
        find_program(name, [], is_module=True)


def test_a_script_is_run_by_its_path(folder: Path) -> None:
    found = find_program("train.py", ["3"], is_module=False)
    assert found.path == "train.py"
    assert found.command() == ["-u", WORKER, "train.py", "3"]
    with pytest.raises(ConfigError, match=f"script 'no.py' not found in {folder}"):
        find_program("no.py", [], is_module=False)
    with pytest.raises(ConfigError, match=r"to run the module pack\.tool, write -m"):
        find_program("pack.tool", [], is_module=False)


@pytest.mark.parametrize(
    ("words", "instead"),
    [
        ("python train.py --lr 1", "run train.py --lr 1"),
        ("/usr/bin/python3.11 -m pack.tool", "run -m pack.tool"),
        ("torchrun --standalone train.py", "run train.py"),
        ("-", "save it: ringleader run train.py"),
        ("train.ipynb", "nbconvert --to script train.ipynb; ringleader run train.py"),
        (".", "name the script: ringleader run train.py"),
    ],
)
def test_what_is_no_script_says_what_to_type(
    folder: Path, words: str, instead: str
) -> None:
    assert (folder / "train.py").exists()
    (folder / "train.ipynb").write_text("{}")
    name, *args = words.split()
    with pytest.raises(ConfigError) as refused:
        find_program(name, args, is_module=False)
    assert str(refused.value).endswith(instead)
