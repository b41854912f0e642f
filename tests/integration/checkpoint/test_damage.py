"""What can happen to the files of a checkpoint is named; older ones still load."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from torch import nn

from ringleader import checkpoint
from ringleader.errors import ConfigError


def mount(path: Path, *options: str) -> bool:
    """Mount a small file system of its own; False if this user must not."""
    command = ["mount", "-t", "tmpfs", "-o", ",".join(options), "none", str(path)]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 256 KiB."""
    path = tmp_path / "disk"
    path.mkdir()
    if not mount(path, "size=256k"):
        pytest.skip("only root mounts file systems")
    yield path
    subprocess.run(["umount", str(path)], check=True)


def model(value: float, width: int = 50) -> nn.Module:
    made = nn.Linear(width, width)
    nn.init.constant_(made.weight, value)
    return made


def value_of(made: nn.Module) -> float:
    weight = made.state_dict()["weight"]
    assert bool((weight == weight[0, 0]).all())
    return float(weight[0, 0])


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (flip, "shard-00000.safetensors is damaged"),
        (Path.unlink, "shard-00000.safetensors is missing"),
    ],
)
def test_a_flipped_byte_and_a_missing_shard(
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    damage: Callable[[Path], None],
    words: str,
) -> None:
    """FT-13: the one before is loaded; if none is left, the live model is untouched."""
    saves = [checkpoint.save(tmp_path, step, model(step)) for step in (1, 2)]
    shards = [Path(saved.path) / "shard-00000.safetensors" for saved in saves]
    damage(shards[1])
    live = model(9)
    loaded = checkpoint.load(tmp_path, live)
    assert loaded is not None
    assert (loaded.step, value_of(live)) == (1, 1.0)
    assert f"{shards[1].parent.name}/{words}" in caplog.text
    damage(shards[0])
    live = model(9)
    with pytest.raises(checkpoint.DamagedCheckpoint) as raised:
        checkpoint.load(tmp_path, live)
    for shard in shards:
        assert f"{shard.parent.name}/{words}" in str(raised.value)
    assert value_of(live) == 9.0


def test_a_full_disk(disk: Path) -> None:
    """FT-13: named, and the room is free again for what was there and what comes."""
    checkpoint.save(disk, 1, model(1))
    with pytest.raises(ConfigError) as raised:
        checkpoint.save(disk, 2, model(2, width=300))
    assert f"rank 0: {disk}/step-00000002-" in str(raised.value)
    assert "shard-00000.safetensors: cannot be written: No space left" in str(
        raised.value
    )
    assert len(list(disk.iterdir())) == 1
    live = model(9)
    loaded = checkpoint.load(disk, live)
    assert loaded is not None
    assert value_of(live) == 1.0
    assert checkpoint.save(disk, 2, model(2)).step == 2


def test_a_read_only_folder(disk: Path) -> None:
    """FT-13: it cannot be written, but read."""
    checkpoint.save(disk, 1, model(1))
    subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
    words = r"rank 0: .*/disk/step-00000002-\w+/\S*: cannot be written: Read-only file"
    with pytest.raises(ConfigError, match=words):
        checkpoint.save(disk, 2, model(2))
    live = model(9)
    assert checkpoint.load(disk, live) is not None
    assert value_of(live) == 1.0


@pytest.mark.parametrize("scheme", ["memory", "file"])
def test_a_url_of_fsspec(tmp_path: Path, scheme: str) -> None:
    url = f"{scheme}://{tmp_path}/run"
    for step in range(4):
        checkpoint.save(url, step, model(step), keep=2, epoch=step)
    live = model(9)
    loaded = checkpoint.load(url, live)
    assert loaded is not None
    assert (loaded.step, loaded.values, value_of(live)) == (3, {"epoch": 3}, 3.0)
    assert checkpoint.load(url, live, step=2) is not None
    assert value_of(live) == 2.0
    with pytest.raises(ConfigError, match="no checkpoint of step 1"):
        checkpoint.load(url, live, step=1)
