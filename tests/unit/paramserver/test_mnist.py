"""The task ``mnist``: where its files are found, and how they are downloaded."""

from __future__ import annotations

import gzip
import hashlib
import struct
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from ringleader.errors import ConfigError
from ringleader.paramserver.tasks import mnist
from ringleader.paramserver.tasks.loading import load_task

COUNTS = (30, 10)


def lay_out(
    folder: Path, *, packed: bool = False, counts: tuple[int, ...] = COUNTS
) -> None:
    """Write four IDX files; label n of an image is n modulo 10."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, count in zip(("train", "t10k"), counts, strict=True):
        head = struct.pack(">HBB", 0, 8, 3) + struct.pack(">3I", count, 28, 28)
        images = head + bytes(n % 251 for n in range(count * 784))
        labels = struct.pack(">HBBI", 0, 8, 1, count) + bytes(
            n % 10 for n in range(count)
        )
        for kind, data in (("images-idx3", images), ("labels-idx1", labels)):
            path = folder / f"{name}-{kind}-ubyte"
            if packed:
                path.with_name(f"{path.name}.gz").write_bytes(
                    gzip.compress(data, mtime=0)
                )
            else:
                path.write_bytes(data)


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A user without data, and a machine without internet."""
    monkeypatch.setenv("RINGLEADER_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    monkeypatch.setattr(mnist, "COUNTS", COUNTS)
    monkeypatch.setattr(mnist, "MIRRORS", ("http://127.0.0.1:9/",))


@pytest.mark.parametrize("below", ["data", "data/raw", "data/MNIST/raw", "."])
def test_files_are_found_where_torchvision_puts_them(
    tmp_path: Path, below: str
) -> None:
    lay_out(tmp_path / "work" / below, packed=below == "data")
    (tmp_path / "work" / below / "notes.txt").write_text("not for others")
    task = load_task("mnist")
    assert task.name == "mnist"
    assert (len(task.samples("train")), len(task.samples("test"))) == COUNTS
    assert len(task.classes) == 10
    assert task.data is not None
    assert task.data.names is not None
    assert len(task.data.names) == 4
    assert not any("notes" in name for name in task.data.names)


def test_a_folder_of_the_user_counts_and_what_it_lacks_is_told(tmp_path: Path) -> None:
    lay_out(tmp_path / "here" / "MNIST" / "raw")
    assert load_task(f"mnist:{tmp_path / 'here'}").name == "mnist"
    (tmp_path / "here/MNIST/raw/t10k-labels-idx1-ubyte").unlink()
    with pytest.raises(ConfigError, match="lacks one of train-images-idx3-ubyte"):
        load_task(f"mnist:{tmp_path / 'here'}")
    lay_out(tmp_path / "few", counts=(10, 10))
    with pytest.raises(ConfigError, match=r"holds 10 and 10 images .* use images:"):
        load_task(f"mnist:{tmp_path / 'few'}")


def test_without_files_and_network_it_says_what_to_do() -> None:
    with pytest.raises(ConfigError, match=r"not in .*/work/data.*write mnist:FOLDER"):
        load_task("mnist")


@pytest.fixture
def mirror(tmp_path: Path) -> Iterator[str]:
    """A web server with the files."""
    lay_out(tmp_path / "web" / "good", packed=True)
    lay_out(tmp_path / "web" / "bad", packed=True)
    for path in (tmp_path / "web" / "bad").iterdir():
        path.write_bytes(path.read_bytes()[:-1] + b"x")
    handler = partial(SimpleHTTPRequestHandler, directory=str(tmp_path / "web"))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as serving:
        serving.daemon_threads = False
        thread = threading.Thread(target=serving.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{serving.server_port}/"
        serving.shutdown()
        thread.join(10)


def test_a_download_is_verified_and_kept(
    tmp_path: Path, mirror: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    good = tmp_path / "web" / "good"
    files = {
        path.name: mnist.PackedFile(
            len(data := path.read_bytes()), hashlib.sha256(data).hexdigest()
        )
        for path in sorted(good.iterdir())
    }
    monkeypatch.setattr(mnist, "FILES", files)
    monkeypatch.setattr(mnist, "MIRRORS", (f"{mirror}bad/",))
    with pytest.raises(ConfigError, match="has another SHA-256 than MNIST's"):
        load_task("mnist")
    assert not [*(tmp_path / "cache" / "mnist").iterdir()]
    mirrors = (f"{mirror}missing/", f"{mirror}bad/", f"{mirror}good/")
    monkeypatch.setattr(mnist, "MIRRORS", mirrors)
    assert len(load_task("mnist").samples("train")) == COUNTS[0]
    monkeypatch.setattr(mnist, "MIRRORS", ())
    assert len(load_task("mnist").samples("train")) == COUNTS[0]


def test_the_hashes_are_those_of_mnist() -> None:
    assert [file.num_bytes for file in mnist.FILES.values()] == [
        9_912_422,
        28_881,
        1_648_877,
        4_542,
    ]
    assert all(len(bytes.fromhex(f.sha256)) == 32 for f in mnist.FILES.values())
