"""No manifest from another machine may write outside of its folder, on any system."""

from __future__ import annotations

import hashlib
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringleader.errors import ConfigError
from ringleader.project import BlobStore, unpack
from ringleader.project.manifest import (
    CHUNK_BYTES,
    MAX_FILES,
    MAX_MANIFEST_BYTES,
    Manifest,
    ProjectFile,
    ProjectLink,
    decode,
    encode,
)

DATA = b"print('hello')\n"
DIGEST = hashlib.sha256(DATA).hexdigest()


def file(path: str) -> ProjectFile:
    return ProjectFile(path, len(DATA), (DIGEST,))


def manifest(*names: str, links: dict[str, str] | None = None) -> Manifest:
    made = tuple(ProjectLink(*each) for each in (links or {}).items())
    return Manifest(tuple(map(file, names)), made)


@pytest.mark.parametrize(
    "name",
    [
        "..",
        "../x",
        "a/../../x",
        "a/..",
        "/etc/passwd",
        "//server/share",
        "C:/x",
        "C:x",
        "c:\\x",
        "..\\x",
        "\\\\?\\C:\\x",
        "a//b",
        "./a",
        "a/.",
        "a/",
        ".. /x",
        "a./x",
        "a /x",
        "nul",
        "NUL.txt",
        "sub/con.py",
        "com\u00b9.py",
        "conin$",
        "file.py:stream",
        "a\x00b",
        "a\nb",
        "x" * 256,
        "x/" * 600 + "x",
        "\ud800",
        "",
    ],
)
def test_a_name_that_leaves_the_folder_on_some_system_is_refused(
    name: str, tmp_path: Path
) -> None:
    store = BlobStore(tmp_path / "store")
    store.put(DIGEST, DATA)
    made = manifest("train.py", name)
    with pytest.raises(ConfigError, match="cannot be unpacked"):
        unpack(made, store, tmp_path / "job")
    if "\ud800" not in name:
        with pytest.raises(ValueError, match=r"name|not a list"):
            decode(encode(made))
    assert [path.name for path in tmp_path.iterdir()] == ["store"]


@pytest.mark.parametrize(
    ("names", "links"),
    [
        (("Train.py", "train.py"), {}),
        (("caf\u00e9.py", "cafe\u0301.py"), {}),
        (("a", "a/b"), {}),
        (("x", "A/b"), {"a": "x"}),  # below a link, where case is ignored
        (("x", "l/b"), {"l": "x"}),
        (("x", "x"), {}),
        (("x",), {"x": "x"}),
    ],
)
def test_names_that_collide_are_refused(
    names: tuple[str, ...], links: dict[str, str]
) -> None:
    with pytest.raises(ValueError, match=r"case only|lies below"):
        decode(encode(manifest(*names, links=links)))


@pytest.mark.parametrize(
    "links",
    [
        {"l": "/etc/passwd"},
        {"l": "../x"},
        {"d/l": "../../x"},
        {"l": "d/../x"},  # safe here, but not where d is a link
        {"l": "."},
        {"d/l": ".."},
        {"l": "nowhere"},
        {"l": "C:/x"},
        {"l": "d\\f"},
        {"d/l": "..", "m": "d/l/../x"},
        {"l": "~/x"},
        {"d/e/g": "../..", "d/m": "e/g/../../x"},  # each is inside by its text alone
    ],
)
def test_a_link_that_could_lead_out_is_refused(links: dict[str, str]) -> None:
    with pytest.raises(ValueError, match="link out of the project"):
        decode(encode(manifest("x", "d/f", "d/e/f", links=links)))


def test_links_inside_are_kept(tmp_path: Path) -> None:
    store = BlobStore(tmp_path / "store")
    store.put(DIGEST, DATA)
    links = {"here": "d/f", "d/up": "../x", "folder": "d", "d/e/two": "../up"}
    made = decode(encode(manifest("x", "d/f", links=links)))
    unpack(made, store, tmp_path / "job")
    for link in (*links, "folder/f"):
        found = (tmp_path / "job" / link).resolve()
        assert found.is_relative_to(tmp_path / "job"), link
        assert found.is_dir() or found.read_bytes() == DATA


@pytest.mark.parametrize(
    "bad",
    [
        ProjectFile("a", -1, ()),
        ProjectFile("a", 5, ()),
        ProjectFile("a", CHUNK_BYTES + 1, (DIGEST,)),
        ProjectFile("a", CHUNK_BYTES + 1, (DIGEST, DIGEST)),
        ProjectFile("a", 5, ("../../etc/passwd",)),
        ProjectFile("a", 5, (DIGEST.upper(),)),
        ProjectFile("a", 1 << 50, ()),
    ],
)
def test_sizes_and_hashes_must_agree(bad: ProjectFile) -> None:
    with pytest.raises(ValueError, match=r"disagree|not a list|two sizes"):
        decode(encode(Manifest((bad,))))


def test_what_is_not_a_manifest_is_refused() -> None:
    many = [{"path": f"f{n}", "num_bytes": 0, "sha256": []} for n in range(MAX_FILES)]
    extra = [{"path": "x", "num_bytes": 0, "sha256": [], "mode": "device"}]
    for body in (
        b"",
        b"[" * 100_000,
        b"\xff",
        b'{"files": 3}',
        msgspec.json.encode({"files": extra}),
        msgspec.json.encode({"files": [*many, *many]}),
        b" " * (MAX_MANIFEST_BYTES + 1),
    ):
        with pytest.raises(ValueError, match="list of files"):
            decode(body)


@given(st.lists(st.text(alphabet="a./\\:~ \x00\u0301é", max_size=6), max_size=3))
def test_whatever_is_accepted_stays_inside(names: list[str]) -> None:
    made = Manifest((file("d/f"),), tuple(ProjectLink(n, n) for n in names if n))
    try:
        decode(encode(made))
    except ValueError:
        return
    for name in names:
        inside = (Path("/job") / name).parts
        assert inside[:2] == ("/", "job")
        assert ".." not in inside
