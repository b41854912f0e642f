"""Blocks of items and the bounded cache that holds them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringleader.checkpoint.agreement import together
from ringleader.checkpoint.byte_exchange import ByteExchange
from ringleader.data.block_cache import BlockCache, CacheFolder
from ringleader.data.block_service import BlockClient, _reason
from ringleader.data.item_block import check, pack
from ringleader.data.served_dataset import ServedDataset, Shape
from ringleader.errors import ConfigError, PeerLost

ITEMS = st.lists(st.binary(max_size=20), min_size=1, max_size=6)


@given(ITEMS, st.data())
def test_a_changed_byte_anywhere_is_found(
    items: list[bytes], data: st.DataObject
) -> None:
    block = pack(items)
    check(block, len(items))
    where = data.draw(st.integers(0, len(block) - 1))
    bit = 1 << data.draw(st.integers(0, 7))
    damaged = block[:where] + bytes([block[where] ^ bit]) + block[where + 1 :]
    for wrong in (damaged, block[:-1], block + b"\0"):
        with pytest.raises(ValueError, match=r"."):
            check(wrong, len(items))


def test_items_are_read_alone_and_damage_is_missing(tmp_path: Path) -> None:
    cache = BlockCache(tmp_path / "items", 1000)
    cache.make()
    items = [b"first", b"", b"third"]
    cache.add(7, pack(items))
    assert [cache.read_item(7, position) for position in range(3)] == items
    assert cache.read_item(8, 0) is None
    path = tmp_path / "items" / "7"
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    assert [cache.read_item(7, position) for position in range(3)] == [
        b"first",
        b"",
        None,
    ]
    cache.remove(7)
    assert not cache.has(7)


def test_the_cache_stays_below_its_limit(tmp_path: Path) -> None:
    """Also if several processes of the machine fill it in turn."""
    caches = [BlockCache(tmp_path / "items", 1000) for _ in range(4)]
    caches[0].make()
    for number in range(100):
        cache = caches[number % 4]
        cache.add(number, bytes(90))
        size = sum(path.stat().st_size for path in (tmp_path / "items").iterdir())
        assert size <= 1000
        assert cache.has(number), "the newest was removed"


def test_a_disk_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder")
    with pytest.raises(ConfigError, match="set RINGLEADER_CACHE"):
        BlockCache(tmp_path / "file" / "items", 1000).make()
    with pytest.raises(ConfigError, match="cannot be written"):
        BlockCache(tmp_path / "nowhere", 1000).add(0, b"x")


def test_a_dataset_that_cannot_fetch_ahead_still_ends(tmp_path: Path) -> None:
    """The thread that fetches ahead has ended with an error, and its queue is full."""

    class Lost:
        def fetch(self, number: int, count: int) -> bytes:
            raise PeerLost(1, "vanished")

    shape = Shape(items=9999, per_block=1, token="0" * 32)
    cache = BlockCache(tmp_path / "items" / "x", 1000)
    data = ServedDataset(shape, cache, cast("BlockClient", Lost()))
    data.open(keeps_folder=True)
    data.prefetch(range(9999))
    data.prefetch(range(9999))
    with pytest.raises(PeerLost, match="rank 1: vanished"):
        data[5]
    data.close()
    assert not [*(tmp_path / "items").iterdir()]


def test_folders_of_killed_programs_are_removed(tmp_path: Path) -> None:
    def opened(name: str) -> CacheFolder:
        cache = BlockCache(tmp_path / name, 1000)
        cache.make()
        folder = CacheFolder(cache.folder)
        folder.open()
        return folder

    (tmp_path / "killed").mkdir()
    (tmp_path / "killed" / "lock").touch()
    first, second = opened("a"), opened("b")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b"]
    first.close()
    second.close()
    assert not [*tmp_path.iterdir()]


def test_errors_about_files_with_any_name_are_told() -> None:
    """A name that is not UTF-8 ended the thread that serves, or left ranks waiting."""
    error = OSError(os.fsdecode(b"caf\xe9 is broken"))

    def fail() -> None:
        raise error

    assert _reason(error) == b"OSError: caf? is broken"
    with pytest.raises(ConfigError, match=r"cannot read: rank 0: caf\? is broken"):
        together(ByteExchange(None), "read", fail)
