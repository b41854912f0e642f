"""Which file lists the packages of a project, and when its environment is another."""

from __future__ import annotations

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


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("requirements.txt", "numpy\n-e .\n", "line 2: installs a folder for editing"),
        ("requirements.txt", "--editable=./x\n", "for editing"),
        ("requirements.txt", "-r nowhere.txt\n", "nowhere.txt: No such file"),
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
