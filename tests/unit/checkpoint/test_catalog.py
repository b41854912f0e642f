"""Which checkpoint is complete follows from what all machines list, on each alike."""

from __future__ import annotations

import errno
import hashlib
import os
from pathlib import Path

import msgspec
import pytest

from ringleader.checkpoint import catalog, manifest
from ringleader.checkpoint.catalog import Listed, candidates, checkpoint_name
from ringleader.checkpoint.copies import plan_copies
from ringleader.checkpoint.manifest import (
    Chunk,
    Manifest,
    Place,
    SavedTensor,
    file_name,
)
from ringleader.checkpoint.place_reader import PlaceReader
from ringleader.checkpoint.retention import remove_old
from ringleader.checkpoint.storage import FolderStorage, write
from ringleader.errors import ConfigError


def listed(step: int, held: str, name: str = "", created: str = "2026") -> Listed:
    return Listed(f"step-{step}", name or str(step), step, created, ["a", "b"], [*held])


def test_files_on_different_machines_make_a_checkpoint_complete() -> None:
    newest, older = candidates(
        [[listed(2, "a"), listed(1, "ab")], [listed(1, "ab")], [listed(2, "b")]]
    )
    assert (newest.listed.step, newest.missing) == (2, [])
    assert newest.holders == {"a": [0], "b": [2]}
    assert newest.manifest_holders == [0, 2]
    assert older.holders == {"a": [0, 1], "b": [0, 1]}


def test_a_second_save_of_a_step_is_another_checkpoint() -> None:
    first, second = listed(2, "a", "x", "2026-01"), listed(2, "b", "y", "2026-02")
    newest, older = candidates([[first], [second]])
    assert (newest.listed.id, newest.missing) == ("y", ["a"])
    assert (older.listed.id, older.missing) == ("x", ["b"])


def test_each_machine_sends_its_shards_to_the_next() -> None:
    files = {f"shard-0000{rank}.safetensors": rank + 1 for rank in range(5)}
    assert plan_copies(files, [0, 0, 0, 0, 0]) == []
    plan = plan_copies(files, [0, 0, 0, 3, 4])
    routes = [(t.source, t.target, t.num_bytes) for t in plan]
    assert routes == [(0, 3, 1), (1, 3, 2), (2, 3, 3), (3, 4, 4), (4, 0, 5)]
    back = plan_copies(files, [0, 1, 2, 3, 3])
    assert [(t.source, t.target) for t in back] == [
        (0, 1),
        (1, 2),
        (2, 3),
        (3, 0),
        (4, 0),
    ]


def saved(storage: FolderStorage, step: int, *, finished: bool = True) -> str:
    name = checkpoint_name(step, f"{step:016x}")
    write(storage, f"{name}/shard-00000.safetensors", [b"data"])
    if finished:
        kept = Manifest(1, f"{step:016x}", step, "2026", 1, {}, {}, {}, {})
        write(storage, f"{name}/{manifest.NAME}", [manifest.encode(kept)])
    return name


def test_old_and_unfinished_checkpoints_are_removed(tmp_path: Path) -> None:
    storage = FolderStorage(tmp_path)
    names = [saved(storage, step) for step in range(4)]
    unfinished = saved(storage, 2 << 20, finished=False)  # another job's, perhaps
    torn = checkpoint_name(1, "ff" * 8)
    write(storage, f"{torn}/shard-00000.safetensors", [b"data"])
    assert set(remove_old(storage, 2, names[3])) == {torn, names[0], names[1]}
    assert set(storage.names()) == {names[2], names[3], unfinished}


def test_a_checkpoint_that_cannot_be_looked_at_is_not_taken_for_unfinished(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage = FolderStorage(tmp_path)
    names = [saved(storage, step) for step in range(3)]
    stat = os.stat

    def failing(path: Path, **kwargs: bool) -> os.stat_result:
        if Path(path).name == manifest.NAME:
            raise OSError(errno.EIO, "Input/output error")
        return stat(path, **kwargs)

    monkeypatch.setattr(os, "stat", failing)
    with pytest.raises(ConfigError, match=r"manifest\.json: cannot be read: Input"):
        remove_old(storage, 1, names[2])
    assert catalog.list_here(storage)[0] == []
    monkeypatch.undo()
    assert set(storage.names()) == set(names)


BAD_NAMES = ["../../x", "/etc/passwd", "a/shard-00000.safetensors", "shard-0", ""]


@pytest.mark.parametrize("file", BAD_NAMES)
def test_no_manifest_and_no_machine_leads_out_of_the_folder(file: str) -> None:
    place = Place(file, 0, 4, "0" * 64)
    for files in ({file: 4}, {file_name(0): 4}):
        bad = Manifest(1, "0" * 16, 1, "2026", 1, files, {}, {"v": place}, {})
        with pytest.raises(ValueError, match=r"no file of a|lies outside of"):
            manifest.decode(manifest.encode(bad))
    listing = msgspec.json.encode([listed(1, "a")])
    with pytest.raises(ValueError, match="no folder of a checkpoint: 'step-1'"):
        catalog.decode_listing(listing)


def test_a_rank_cannot_ask_for_bytes_outside_of_the_checkpoint(tmp_path: Path) -> None:
    """The requests of other ranks choose what this one reads and sends."""
    (tmp_path / "secret").write_bytes(b"secret")
    place = Place("../secret", 0, 6, hashlib.sha256(b"secret").hexdigest())
    storage = FolderStorage(tmp_path)
    kept = Manifest(1, "0" * 16, 1, "2026", 1, {}, {}, {}, {})
    reader = PlaceReader(storage, "step", kept, holders={"../secret": [0, 1]})
    with pytest.raises(ConfigError, match="asks for what no checkpoint holds"):
        reader.locate([msgspec.structs.replace(place, begin=1)])


@pytest.mark.parametrize(
    ("sizes", "num_bytes"), [((3,), 12), ((2, 1), 8), ((-2,), 8), ((2,), 4)]
)
def test_chunks_that_contradict_their_tensor_are_refused(
    sizes: tuple[int, ...], num_bytes: int
) -> None:
    chunk = Chunk((0,), sizes, Place(file_name(0), 0, num_bytes, "0" * 64))
    tensors = {"w": SavedTensor("F32", (2,), (chunk,))}
    files = {file_name(0): 100}
    bad = Manifest(1, "0" * 16, 1, "2026", 1, files, tensors, {}, {})
    with pytest.raises(ValueError, match=r"a chunk of w|zip"):
        manifest.decode(manifest.encode(bad))


def test_a_flipped_bit_in_the_manifest_is_named(tmp_path: Path) -> None:
    storage = FolderStorage(tmp_path)
    name = saved(storage, 5)
    path = tmp_path / name / manifest.NAME
    data = path.read_bytes()
    for index in range(0, len(data), 7):
        damaged = bytearray(data)
        damaged[index] ^= 4
        path.write_bytes(damaged)
        with pytest.raises(ValueError, match=f"{name}/manifest.json is damaged"):
            catalog.read_manifest(storage, name)
    path.write_bytes(data)
    assert catalog.read_manifest(storage, name) is not None
