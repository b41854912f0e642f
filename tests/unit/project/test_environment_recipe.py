"""Which file lists the packages of a project, and when its environment is another."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from ringleader.errors import ConfigError
from ringleader.project.environment_recipe import find_recipe


def test_the_nearest_and_most_exact_list_counts(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"none of uv.lock, pylock.toml, requ"):
        find_recipe(tmp_path, "a/b/train.py")
    (tmp_path / "a/b").mkdir(parents=True)
    text = '[project]\nname = "x"\nversion = "1"\ndependencies = ["numpy>=2", "tqdm"]\n'
    (tmp_path / "pyproject.toml").write_text(text)
    found = find_recipe(tmp_path, "a/b/train.py")
    assert (found.kind, found.dependencies) == ("pyproject.toml", ("numpy>=2", "tqdm"))
    (tmp_path / "requirements.txt").write_text("numpy\n")
    assert find_recipe(tmp_path, "a/b/train.py").kind == "requirements.txt"
    (tmp_path / "uv.lock").write_text("version = 1\n")
    assert find_recipe(tmp_path, "a/b/train.py").kind == "uv.lock"
    (tmp_path / "a" / "requirements.txt").write_text("numpy\n")
    nearest = find_recipe(tmp_path, "a/b/train.py")
    assert nearest.path == tmp_path / "a" / "requirements.txt"


def test_what_a_list_includes_changes_its_hash(tmp_path: Path) -> None:
    names = ("-r base.txt", "--constraint=limits.txt", "-cmore.txt # why")
    (tmp_path / "requirements.txt").write_text("numpy\n" + "\n".join(names))
    for name in ("base.txt", "limits.txt", "more.txt"):
        (tmp_path / name).write_text("-r base.txt\ntqdm\n")
    digests = [find_recipe(tmp_path, "train.py").digest]
    for name in ("base.txt", "limits.txt", "more.txt", "requirements.txt"):
        with open(tmp_path / name, "a") as file:
            file.write("\nrich")
        digests.append(find_recipe(tmp_path, "train.py").digest)
    assert len(set(digests)) == 5
    assert find_recipe(tmp_path, "train.py").digest == digests[-1]


PYPROJECT = '[project]\nname = "x"\nversion = "1"\n'
PKG = {"pkg/pyproject.toml": PYPROJECT, "pkg/src/deep.py": "1", "other/o.py": "1"}


@pytest.mark.parametrize(
    ("lists", "changed"),
    [
        ({"requirements.txt": "./pkg\n"}, "pkg/src/deep.py"),
        ({"requirements.txt": "numpy\n./pkg[extra] ; python_version > '3'"}, "pkg/new"),
        ({"requirements.txt": "pkg/\n"}, "pkg/src/deep.py"),
        ({"requirements.txt": "pkg @ file:./pkg#egg=x\n"}, "pkg/src/deep.py"),
        ({"requirements.txt": "pkg @ file://localhost{}/pkg\n"}, "pkg/src/deep.py"),
        ({"requirements.txt": "${HERE}/pkg\n"}, "pkg/src/deep.py"),
        ({"requirements.txt": "./it's", "it's/a.py": "1"}, "it's/a.py"),
        (
            {"requirements.txt": "-r \\\n sub/base.txt", "sub/base.txt": "./pkg"},
            "pkg/n",
        ),
        ({"requirements.txt": "--req=sub/b.txt", "sub/b.txt": "../pkg"}, "pkg/n"),
        ({"requirements.txt": "-r file:b.txt", "b.txt": "numpy"}, "b.txt"),
        (
            {"requirements.txt": "x-1.0-py3-none-any.whl # why"},
            "x-1.0-py3-none-any.whl",
        ),
        ({"requirements.txt": "--no-index --find-links wheels\nx"}, "wheels/x-1.whl"),
        ({"requirements.txt": "-fwheels\nx"}, "wheels/x-1.whl"),
        ({"requirements.txt": "--extra-index-url file:wheels\nx"}, "wheels/x-1.whl"),
        ({"requirements.txt": "x", "uv.toml": "find-links = ['wheels']"}, "wheels/y"),
        (
            {
                "requirements.txt": "./outer",
                "outer/pyproject.toml": PYPROJECT
                + 'dependencies = ["a @ file:../pkg"]',
                "pkg/pyproject.toml": "[tool.uv.sources]\no = {path = '../other'}",
            },
            "other/o.py",
        ),
        (
            {"pyproject.toml": f'{PYPROJECT}dependencies = ["pkg @ file:./pkg"]'},
            "pkg/n",
        ),
        (
            {
                "pyproject.toml": PYPROJECT,
                "uv.lock": "[[package]]\nname='p'\nsource = {editable = 'pkg'}\n"
                "[[package]]\nname='x'\nsource = {editable = '.'}\n",
            },
            "pkg/src/deep.py",
        ),
        (
            {
                "pyproject.toml": PYPROJECT,
                "uv.lock": "[[package]]\nname='p'\nsource = {registry = 'wheels'}\n",
            },
            "wheels/x-1.whl",
        ),
        (
            {"pylock.toml": "[[packages]]\nname='p'\ndirectory = {path = 'pkg'}\n"},
            "pkg/src/deep.py",
        ),
        (
            {"pylock.toml": "[[packages]]\nwheels = [{path = 'wheels/x-1.whl'}]\n"},
            "wheels/x-1.whl",
        ),
    ],
)
def test_what_a_list_takes_from_the_disk_changes_its_hash(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    lists: dict[str, str],
    changed: str,
) -> None:
    """Not what lies beside it, and not where the project lies."""
    job = tmp_path / "job"
    monkeypatch.setenv("HERE", str(job))
    files = {"wheels/x-1.whl": "1", "x-1.0-py3-none-any.whl": "1", **PKG, **lists}
    for name, text in files.items():
        (job / name).parent.mkdir(parents=True, exist_ok=True)
        (job / name).write_text(text.replace("{}", str(job)))
    digest = find_recipe(job, "train.py").digest
    (job / "train.py").write_text("new")
    assert find_recipe(job, "train.py").digest == digest
    if not any("{}" in text or "${" in text for text in lists.values()):
        shutil.copytree(job, tmp_path / "job2")
        assert find_recipe(tmp_path / "job2", "train.py").digest == digest
    with open(job / changed, "a") as file:
        file.write("\n# more")
    assert find_recipe(job, "train.py").digest != digest


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("requirements.txt", "numpy\n-e .\n", "line 2: installs a folder for editing"),
        ("requirements.txt", "--editable=./x\n", "for editing"),
        ("requirements.txt", "x\n--edit ./x\n", "line 2: .* for editing"),
        ("requirements.txt", "-r nowhere.txt\n", "nowhere.txt: No such file"),
        ("requirements.txt", "x\n../pkg\n", r"line 2: \.\./pkg is not in the project"),
        ("requirements.txt", "git+file:///srv/x\n", "list a folder or a wheel"),
        ("requirements.txt", "x @ file://host/x\n", "list a folder or a wheel"),
        ("pyproject.toml", "this is no toml", "pyproject.toml: "),
        ("pyproject.toml", "project = 3", "pyproject.toml: "),
        ("pyproject.toml", "[project]\ndependencies = 'x'", "not a list"),
        ("uv.lock", "", "without pyproject.toml"),
    ],
)
def test_a_list_that_cannot_be_used_says_why(
    tmp_path: Path, name: str, text: str, said: str
) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(ConfigError, match=said):
        find_recipe(tmp_path, "train.py")
