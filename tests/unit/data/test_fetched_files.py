"""Lists of files from other machines, the cache they fill, and who sends what."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringleader.data import listing as listings
from ringleader.data.cached_files import MAX_BYTES, CachedFiles
from ringleader.data.listing import CHUNK_BYTES, list_files
from ringleader.data.transfer_plan import (
    CHUNKS_AT_ONCE,
    CHUNKS_PER_ROUND,
    Distribution,
    waves,
)
from ringleader.deadline import Deadline
from ringleader.errors import ConfigError
from ringleader.settings.cache import cache_folder

CONTENT = {"a.bin": bytes(range(256)) * 20_000, "b/c.txt": b"text", "b/empty": b""}


def folder(root: Path) -> Path:
    for name, data in CONTENT.items():
        path = root / "source" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    (root / "source" / ".DS_Store").write_bytes(b"litter")
    return root / "source"


def copied(copy: CachedFiles, source: Path) -> None:
    """Fill what is missing, as a transfer does."""
    missing = copy.open(Deadline.after(60))
    copy.make_room(missing, MAX_BYTES)
    for number in missing:
        chunk = copy.chunks[number]
        data = listings.read_chunk(source / chunk.file, chunk)
        assert data is not None
        assert not copy.write(number, b"x" + data[1:]), "another chunk was accepted"
        assert copy.write(number, data)
    copy.publish()
    copy.close()


def test_a_copy_has_the_same_bytes_and_only_damage_is_missing(tmp_path: Path) -> None:
    source = folder(tmp_path)
    listing = listings.decode(listings.encode(list_files(source)))
    assert [file.name for file in listing.files] == sorted(CONTENT)
    assert len(CONTENT["a.bin"]) > CHUNK_BYTES  # two chunks
    copy = CachedFiles(tmp_path / "cache", listing)
    copied(copy, source)
    assert {n: (copy.path / n).read_bytes() for n in CONTENT} == CONTENT
    assert copy.open(Deadline.after(60)) == []
    copy.close()
    with open(copy.path / "a.bin", "r+b") as file:
        file.seek(CHUNK_BYTES + 7)
        file.write(b"\0")
    assert copy.open(Deadline.after(60)) == [1]
    copy.close()
    copied(copy, source)
    assert (copy.path / "a.bin").read_bytes() == CONTENT["a.bin"]


def test_what_arrived_before_a_crash_stays(tmp_path: Path) -> None:
    source = folder(tmp_path)
    copy = CachedFiles(tmp_path / "cache", list_files(source))
    copy.make_room(copy.open(Deadline.after(60)), MAX_BYTES)
    assert copy.write(0, CONTENT["a.bin"][:CHUNK_BYTES])
    copy.close()
    assert not copy.path.exists(), "an incomplete copy has its name already"
    assert copy.open(Deadline.after(60)) == [1, 2]
    second = CachedFiles(tmp_path / "cache", copy.listing)
    with pytest.raises(ConfigError, match="another process is fetching the same data"):
        second.open(Deadline.after(0))
    copy.close()
    copied(second, source)
    assert (second.path / "a.bin").read_bytes() == CONTENT["a.bin"]


def test_one_file_is_a_listing_too(tmp_path: Path) -> None:
    source = folder(tmp_path)
    listing = list_files(source / "a.bin")
    copy = CachedFiles(tmp_path / "cache", listing)
    copied(copy, source)
    assert copy.path.name == "a.bin"
    assert copy.path.read_bytes() == CONTENT["a.bin"]


def test_sizes_that_do_not_fit_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    listing = list_files(folder(tmp_path))
    copy = CachedFiles(tmp_path / "cache", listing)
    missing = copy.open(Deadline.after(60))
    with pytest.raises(ConfigError, match="more than max_bytes=10 allows"):
        copy.make_room(missing, 10)
    copy.close()
    monkeypatch.setattr(
        "shutil.disk_usage", lambda _: SimpleNamespace(free=len(CONTENT["a.bin"]))
    )
    missing = copy.open(Deadline.after(60))
    with pytest.raises(
        ConfigError, match=r"5,120,004 bytes are missing, but 5,120,000"
    ):
        copy.make_room(missing, MAX_BYTES)
    copy.close()


@pytest.mark.parametrize(
    "name",
    [
        "",
        "/etc/passwd",
        "../a",
        "a/../b",
        "a//b",
        "./a",
        "a\\b",
        "C:a",
        "a\0",
        "x" * 300,
        ".. /a",  # Windows ignores the space
        "a/.. ./b",
        "a.",
        "aux.png",
        "x/Com1",
        "\ud800",
    ],
)
def test_names_that_lead_elsewhere_are_refused(name: str) -> None:
    data = {"is_file": False, "files": [{"name": name, "num_bytes": 0, "sha256": []}]}
    try:
        encoded = msgspec.json.encode(data)
    except UnicodeEncodeError:
        return
    with pytest.raises(ValueError, match="name"):
        listings.decode(encoded)


@pytest.mark.parametrize(
    "files",
    [
        [("a", 5, [])],
        [("a", -1, [])],
        [("a", 1 << 90, [])],
        [("a", 5, ["0" * 63])],
        [("a", 5, ["0" * 64, "0" * 64])],
        [("a", 0, []), ("A", 0, [])],
        [("a", 0, []), ("a/b", 0, [])],
    ],
)
def test_contradictory_listings_are_refused(
    files: list[tuple[str, int, list[str]]],
) -> None:
    entries = [{"name": n, "num_bytes": b, "sha256": s} for n, b, s in files]
    with pytest.raises(ValueError, match=r"."):
        listings.decode(msgspec.json.encode({"is_file": False, "files": entries}))


def test_what_cannot_be_sent_is_named(tmp_path: Path) -> None:
    source = folder(tmp_path)
    (source / "inside").symlink_to(source / "a.bin")
    assert len(list_files(source).files) == 4
    (source / "out").symlink_to("/etc/hostname")
    with pytest.raises(ConfigError, match="link to a file outside"):
        list_files(source)
    (source / "out").unlink()
    (source / "there").symlink_to(tmp_path)
    with pytest.raises(ConfigError, match="link to a folder"):
        list_files(source)
    (source / "there").unlink()
    os.mkfifo(source / "pipe")
    with pytest.raises(ConfigError, match="not a plain file"):
        list_files(source)
    (tmp_path / "empty").mkdir()
    with pytest.raises(ConfigError, match="no files"):
        list_files(tmp_path / "empty")


@given(
    st.integers(1, 60),
    st.integers(1, 4),
    st.integers(1, 2),
    st.sets(st.tuples(st.integers(0, 5), st.integers(0, 60))),
)
def test_every_chunk_arrives_and_the_owner_sends_each_about_once(
    chunks: int, receivers: int, owners: int, broken: set[tuple[int, int]]
) -> None:
    """``broken`` sources send rubbish for these chunks, but the last owner never."""
    ranks = range(owners, owners + receivers)
    plan = Distribution({r: set(range(chunks)) for r in ranks}, range(owners))
    sent = dict.fromkeys(range(owners + receivers), 0)
    while not plan.is_done():
        before = {r: set(n) for r, n in plan.missing.items()}
        moves, lost = plan.next_round()
        assert not lost
        assert moves
        failed: dict[int, list[int]] = {}
        for move in moves:
            assert move.number in before[move.target]
            assert move.source < owners or move.number not in before[move.source]
            sent[move.source] += 1
            if (move.source, move.number) in broken and move.source != owners - 1:
                failed.setdefault(move.target, []).append(move.number)
        for wave in waves(moves):
            for rank in range(owners + receivers):
                assert sum(m.source == rank for m in wave) <= CHUNKS_AT_ONCE
                assert sum(m.target == rank for m in wave) <= CHUNKS_AT_ONCE
        assert sum(len(wave) for wave in waves(moves)) == len(moves)
        plan.apply(moves, failed)
    if not broken and chunks > receivers * CHUNKS_PER_ROUND * 2:
        assert sum(sent[rank] for rank in range(owners)) < 2 * chunks


def test_a_chunk_that_nobody_has_intact_is_told() -> None:
    plan = Distribution({1: {5}}, [0])
    moves, lost = plan.next_round()
    assert (len(moves), lost) == (1, [])
    plan.apply(moves, {1: [5]})
    assert plan.next_round() == ([], [(1, 5)])


def test_the_cache_is_where_the_user_says(tmp_path: Path) -> None:
    assert cache_folder(env={"RINGLEADER_CACHE": str(tmp_path)}) == tmp_path
    assert cache_folder(env={"XDG_CACHE_HOME": "/c"}) == Path("/c/ringleader")
    assert cache_folder(env={}) == Path.home() / ".cache" / "ringleader"
    with pytest.raises(ConfigError, match="use an absolute path"):
        cache_folder(env={"RINGLEADER_CACHE": "here"})
