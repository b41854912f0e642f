"""What is said about paths that do not travel."""

from __future__ import annotations

from pathlib import Path

import pytest

from ringleader.cli.run_cluster import large_hint
from ringleader.cli.travel import explain_missing, staying_arguments, travelling_folder
from ringleader.project import Manifest, ProjectFiles
from ringleader.project.manifest import ProjectFile


@pytest.mark.parametrize(
    ("given", "sent"),
    [
        ("/home/anna/runs/a", "~/runs/a"),
        ("runs/a", "~/project/runs/a"),
        ("../../runs", "/home/runs"),
        ("/data/runs", "/data/runs"),
        ("/home/annabel/a", "/home/annabel/a"),
        ("s3://bucket/a", "s3://bucket/a"),
    ],
)
def test_a_folder_below_the_home_is_that_of_each_user(given: str, sent: str) -> None:
    home = Path("/home/anna")
    assert travelling_folder(given, home / "project", home) == sent


def test_arguments_that_stay_here_are_named(tmp_path: Path) -> None:
    root = tmp_path / "project"
    (root / "data").mkdir(parents=True)
    for name in ("kept.csv", "data/kept.csv", "data/ignored.csv", "../outside.csv"):
        (root / name).touch()
    (root / "ignored").mkdir()
    outside = str(tmp_path / "outside.csv")
    words = ["kept.csv", "data", "data/kept.csv", "0.1", "--lr=0.2", "new.csv", "/no/x"]
    words += ["--in=../outside.csv", "data/ignored.csv", "ignored", outside, "."]
    told = staying_arguments(words, root, root, ["kept.csv", "data/kept.csv"])
    assert [text.partition(" does not travel: ")[::2] for text in told[:3]] == [
        ("../outside.csv", ANY_OUTSIDE.format(root)),
        ("data/ignored.csv", IGNORED),
        ("ignored", IGNORED),
    ]
    assert told[3:] == [f"{outside}: every machine uses its own; it does not travel"]
    sub = staying_arguments(
        ["kept.csv", "../kept.csv"], root / "data", root, ["kept.csv"]
    )
    assert [text.split()[0] for text in sub] == ["kept.csv"]


HELP = (
    "put it into the project, give a path that every machine has, or let the program "
    "call ringleader.fetch with the absolute path here"
)
ANY_OUTSIDE = "it lies outside of the project {}; " + HELP
IGNORED = "Git ignores it, or it is empty; " + HELP


def test_a_file_that_the_program_did_not_find_is_explained(tmp_path: Path) -> None:
    (tmp_path / "here.csv").touch()
    text = "rank 0: FileNotFoundError: [Errno 2] No such file or directory: '{}'"
    said = explain_missing(text.format("here.csv"), tmp_path)
    assert said.startswith("here.csv is here, but not on that machine")
    assert HELP in said
    said = explain_missing(text.format("../x.csv"), tmp_path)
    assert said.startswith("../x.csv is not in the job's folder: the program runs in a")
    assert explain_missing("ValueError: 'x'", tmp_path) == ""


def test_a_large_project_says_where_its_data_is(tmp_path: Path) -> None:
    def files(num_bytes: int) -> ProjectFiles:
        data = ProjectFile("data/all.bin", num_bytes, ())
        manifest = Manifest((ProjectFile("train.py", 100, ()), data))
        return ProjectFiles(tmp_path, "train.py", manifest)

    assert large_hint(files(90_000_000)) == ""
    hint = large_hint(files(300_000_000))
    assert hint.startswith("the project has 300 MB, 300 MB of it in data/all.bin; ")
    assert f'ringleader.fetch("{tmp_path}/data/all.bin")' in hint
