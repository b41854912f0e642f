"""Which checkpoint is complete follows from what all machines list, on each alike."""

from __future__ import annotations

from pathlib import Path

import pytest

from ringleader.checkpoint import catalog, manifest
from ringleader.checkpoint.catalog import Listed, candidates, checkpoint_name
from ringleader.checkpoint.copies import plan_copies
from ringleader.checkpoint.manifest import Manifest
from ringleader.checkpoint.retention import remove_old
from ringleader.checkpoint.storage import FolderStorage, write


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
