"""Data of one machine for all: every rank plays a machine with a cache of its own."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

import ringleader
from ringleader.data import fetch as fetching
from ringleader.data.cached_files import CachedFiles
from ringleader.data.listing import CHUNK_BYTES, Chunk, read_chunk
from ringleader.data.served_dataset import ServedDataset
from ringleader.errors import ConfigError, DeadlineExceeded, PeerFailed
from tests.torch.scenario_checkpoint import folder_of_all

OWNER = 1
NUM_CHUNKS = 4
COUNT = 131


@lru_cache(maxsize=4)
def content(seed: int = 0) -> dict[str, bytes]:
    """Files of four chunks in all, one of them short, and an empty one."""
    chance = np.random.default_rng(seed)
    sizes = {"big.bin": 2 * CHUNK_BYTES + 12345, "deep/er/small": 7, "deep/empty": 0}
    return {name: chance.bytes(size) for name, size in sizes.items()}


def lay_out(root: Path, files: dict[str, bytes]) -> None:
    for name, data in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)


@contextmanager
def written(limit: int | None = None) -> Iterator[list[int]]:
    """Record the chunks that this rank writes; the disk is full after ``limit``."""
    numbers: list[int] = []
    write = CachedFiles.write

    def counted(copy: CachedFiles, number: int, data: bytes) -> bool:
        if limit is not None and len(numbers) >= limit:
            raise ConfigError("No space left on device")
        is_intact = write(copy, number, data)
        if is_intact:
            numbers.append(number)
        return is_intact

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(CachedFiles, "write", counted)
        yield numbers


def data_fetch(rank: int, size: int) -> None:
    """One machine has the files: all get the same bytes, once; damage is repaired."""
    with folder_of_all(rank) as folder:
        machines = [Path(folder) / f"machine{each}" for each in range(size)]
        mine = machines[rank]
        mine.mkdir()
        path, cache = mine / "pictures", mine / "cache"
        asked = ".*".join(str(machine / "pictures") for machine in machines)
        with pytest.raises(ConfigError, match=f"no machine has 'pictures'.*{asked}"):
            ringleader.fetch(path, cache=cache)
        if rank == OWNER:
            lay_out(path, content())
        dist.barrier()
        with pytest.raises(ConfigError, match=r"rank 0: the data has .* max_bytes=99 "):
            ringleader.fetch(path, cache=cache, max_bytes=99)
        fetched_after_a_full_disk(rank, size, path, cache)
        one = ringleader.fetch(path / "big.bin", cache=cache)
        assert one.read_bytes() == content()["big.bin"]


def fetched_after_a_full_disk(rank: int, size: int, path: Path, cache: Path) -> None:
    """The disk of one rank is full for a moment; later a byte of its copy flips."""
    last = size - 1 if size > 2 else 0
    full = pytest.raises(ConfigError, match=f"rank {last}: No space left on device")
    with written(limit=1 if rank == last else None) as before, full:
        ringleader.fetch(path, cache=cache)
    with written() as after:
        found = ringleader.fetch(path, cache=cache)
    assert len(before) + len(after) == (0 if rank == OWNER else NUM_CHUNKS)
    assert not set(before) & set(after), "a chunk was sent again after the break"
    assert (found == path) == (rank == OWNER)
    assert {n: (found / n).read_bytes() for n in content()} == content()
    if rank == last:
        with open(found / "big.bin", "r+b") as file:
            file.seek(CHUNK_BYTES + 5)
            file.write(b"flip")
    with written() as repaired:
        assert ringleader.fetch(path, cache=cache) == found
    assert repaired == ([1] if rank == last else [])
    assert {n: (found / n).read_bytes() for n in content()} == content()


def data_fetch_from_machines_that_differ(rank: int, size: int) -> None:
    """Two machines have other bytes: an error, or the rank that the caller names. A
    machine that sends damaged bytes is not asked for them again."""
    with folder_of_all(rank) as folder:
        mine = Path(folder) / f"machine{rank}"
        path, cache = mine / "data", mine / "cache"
        if rank < 2:
            lay_out(path, content(seed=rank))
        dist.barrier()
        with pytest.raises(ConfigError, match=r"ranks 0 and 1 have different data"):
            ringleader.fetch(path, cache=cache)
        found = ringleader.fetch(path, cache=cache, source=1)
        assert (found / "big.bin").read_bytes() == content(seed=1)["big.bin"]
        dist.barrier()
        if rank == 0:
            lay_out(path, content(seed=1))
        other = mine / "other"
        dist.barrier()
        with pytest.MonkeyPatch.context() as patch:
            if rank == 0:
                patch.setattr(fetching, "read_chunk", damaged)
            found = ringleader.fetch(path, cache=other)
            assert (found / "big.bin").read_bytes() == content(seed=1)["big.bin"]
            if rank == 1:
                (mine / "data").rename(mine / "gone")
            dist.barrier()
            if size > 2:
                with pytest.raises(ConfigError, match="no machine has intact bytes of"):
                    ringleader.fetch(path, cache=mine / "third")


def data_fetch_once_per_machine(rank: int, size: int) -> None:
    """Ranks 0 and 2 are on one machine: one of them fetches for both. Then rank 2 alone
    sees the data, and the other has only an empty folder of that name."""
    with folder_of_all(rank) as folder:
        mine = Path(folder) / f"machine{rank % 2}"
        small = {"a": b"1234567", "b/c": b""}
        if rank == OWNER:
            lay_out(mine / "data", small)
        dist.barrier()
        with written() as numbers:
            found = ringleader.fetch(mine / "data", cache=mine / "cache")
        assert {n: (found / n).read_bytes() for n in small} == small
        assert numbers == ([0] if rank == 0 else [])
        assert found.is_relative_to(mine)

        path = mine / f"of{rank}"
        path.mkdir()
        last = size - 1
        if rank == last:
            lay_out(path, content(seed=3))
        dist.barrier()
        found = ringleader.fetch(path, cache=mine / "cache")
        assert (found / "big.bin").read_bytes() == content(seed=3)["big.bin"]
        if rank % 2 == last % 2:
            assert found == mine / f"of{last}"


def damaged(path: Path, chunk: Chunk) -> bytes | None:
    data = read_chunk(path, chunk)
    return data and bytes([data[0] ^ 1]) + data[1:]


class Items(Dataset[Any]):
    """Items of several kinds; the last one cannot be read."""

    def __init__(self, length: int, is_broken: bool = False) -> None:
        self.length = length
        self.is_broken = is_broken

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> tuple[Tensor, int, dict[str, Any]]:
        if self.is_broken and index == self.length - 1:
            raise OSError(f"picture {index} is broken")
        values = torch.full((3, 1001), float(index), dtype=torch.bfloat16)
        return values, index, {"name": f"item {index}", "box": np.arange(index % 5)}


class HeldUp(Items):
    """Items of which the second one is read late."""

    def __init__(self, length: int) -> None:
        super().__init__(length)
        self.may_read = threading.Event()

    def __getitem__(self, index: int) -> tuple[Tensor, int, dict[str, Any]]:
        if index == 1:
            assert self.may_read.wait(80.0)
        return super().__getitem__(index)


def same_item(actual: Any, index: int) -> None:  # noqa: ANN401
    values, number, extra = actual
    expected = Items(index + 1)[index]
    assert type(actual) is tuple
    assert torch.equal(values, expected[0])
    assert (values.dtype, number) == (torch.bfloat16, index)
    assert extra["name"] == f"item {index}"
    assert np.array_equal(extra["box"], expected[2]["box"])


def data_dataset(rank: int, size: int) -> None:
    """A dataset of one rank has the same items on all, in worker processes, too, and
    every sample is used once in an epoch."""
    dist.new_group([0])  # so that the ranks are in different numbers of groups
    with folder_of_all(rank) as folder:
        cache = Path(folder) / f"machine{rank}"
        with pytest.raises(ConfigError, match=r"no rank of .* passed a dataset"):
            ringleader.dataset(None, cache=cache)
        source = Items(COUNT) if rank == OWNER else None
        data: Any = ringleader.dataset(source, cache=cache, timeout_s=80.0)
        assert len(data) == COUNT
        for index in (0, 77, COUNT - 1):
            same_item(data[index], index)
        if isinstance(data, ServedDataset):
            edges_and_damage(data, cache / "items")
        every_sample_once(data, rank, size)
        dist.barrier()
        if isinstance(data, ServedDataset):
            data.close()
            assert not [*(cache / "items").iterdir()], "the cache was not removed"

        broken = Items(30, is_broken=True) if rank == OWNER else None
        data = ringleader.dataset(broken, cache=cache)
        expected = OSError if rank == OWNER else PeerFailed
        with pytest.raises(expected, match="picture 29 is broken"):
            data[29]
        dist.barrier()
        if isinstance(data, ServedDataset):
            data.close()
        late_answer(rank, cache)


def late_answer(rank: int, cache: Path) -> None:
    """An answer that comes too late is not taken for that to the next request."""
    source = HeldUp(COUNT) if rank == OWNER else None
    data: Any = ringleader.dataset(source, cache=cache, timeout_s=0.2)
    if isinstance(data, ServedDataset):
        with pytest.raises(DeadlineExceeded, match=f"rank {OWNER}: did not send data"):
            data[1]
        assert data._client is not None
        data._client._timeout_s = 80.0
    dist.barrier()
    if source is not None:
        source.may_read.set()
    for index in (COUNT - 1, 1, 60):
        same_item(data[index], index)
    dist.barrier()
    if isinstance(data, ServedDataset):
        data.close()


def edges_and_damage(data: ServedDataset, items: Path) -> None:
    same_item(data[-1], COUNT - 1)
    with pytest.raises(IndexError):
        data[COUNT]
    block = min(items.glob("*/[0-9]*"))
    content = bytearray(block.read_bytes())
    content[-1] ^= 1
    block.write_bytes(content)
    last = min((int(block.name) + 1) * data._shape.per_block, COUNT) - 1
    same_item(data[last], last)


def every_sample_once(data: Dataset[Any], rank: int, size: int) -> None:
    workers = 2 if rank == 0 else 0
    weights = [*range(1, size + 1)]
    batches = ringleader.shard(
        data, 9, num_workers=workers, collate_fn=list, weights=weights
    )
    seen = torch.zeros(COUNT, dtype=torch.int64)
    for batch in batches:
        for item in cast("list[Any]", batch):
            same_item(item, item[1])
            seen[item[1]] += 1
    dist.all_reduce(seen)
    assert torch.equal(seen, torch.ones_like(seen))
    if workers:
        loader = DataLoader(data, num_workers=1, collate_fn=list, batch_size=50)
        assert [item[1] for batch in loader for item in batch] == [*range(COUNT)]


# -- killed ------------------------------------------------------------------------


def fetch_until_killed(
    rank: int, size: int, folder: str, ready: Callable[[], None]
) -> None:
    """Rank 1 sends two chunks and then stops; rank 0 has got both. It is killed."""
    mine = Path(folder) / f"machine{rank}"
    steps: list[object] = []

    def slow(path: Path, chunk: Chunk) -> bytes | None:
        steps.append(chunk)
        if len(steps) > 2:
            ready()
            time.sleep(400)
        return read_chunk(path, chunk)

    write = CachedFiles.write

    def told(copy: CachedFiles, number: int, data: bytes) -> bool:
        is_intact = write(copy, number, data)
        steps.append(number)
        if len(steps) == 2:
            ready()
        return is_intact

    if rank == OWNER:
        lay_out(mine / "data", content())
    dist.barrier()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fetching, "read_chunk", slow)
        patch.setattr(CachedFiles, "write", told)
        ringleader.fetch(mine / "data", cache=mine / "cache")


def ask_until_killed(
    rank: int, size: int, folder: str, ready: Callable[[], None]
) -> None:
    """Rank 1 has the items and is killed while others ask."""
    mine = Path(folder) / f"machine{rank}"
    source = Items(100_000) if rank == OWNER else None
    data: Any = ringleader.dataset(source, cache=mine / "cache", timeout_s=80.0)
    same_item(data[0], 0)
    ready()
    if rank == OWNER:
        time.sleep(400)
    for index in range(len(data)):
        same_item(data[index], index)


def fetch_the_rest(
    rank: int, size: int, folder: str, ready: Callable[[], None]
) -> None:
    """Rank 2 has the data now. Machine 0 kept what it had got from the killed one."""
    ready()
    mine = Path(folder) / f"machine{rank}"
    if rank == 2:
        lay_out(mine / "data", content())
    dist.barrier()
    with written() as numbers:
        found = ringleader.fetch(mine / "data", cache=mine / "cache")
    assert {n: (found / n).read_bytes() for n in content()} == content()
    assert len(numbers) == {0: NUM_CHUNKS - 2, 1: NUM_CHUNKS, 2: 0}[rank]
