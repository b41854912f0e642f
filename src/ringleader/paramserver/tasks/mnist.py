"""The built-in task ``mnist``: 60,000 images of handwritten digits, 10,000 to test.

The four IDX files, plain or packed, are looked for where torchvision puts them and in
the cache; otherwise they are downloaded and verified. Workers get them from the server.
"""

from __future__ import annotations

import hashlib
import os
import secrets
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from ringleader.deadline import Deadline
from ringleader.errors import ConfigError
from ringleader.paramserver.tasks import idx, images
from ringleader.paramserver.tasks.task import DataFiles, Task
from ringleader.settings.cache import cache_folder

if TYPE_CHECKING:
    import httpx2  # an extra, which only a download needs

COUNTS = (60_000, 10_000)
"""Images to train and to test with."""
_SHAPE = (28, 28)
_CLASSES = 10
_BELOW = ("", "raw", "MNIST/raw")
"""Where the files lie below a folder: as they are, or in torchvision's layout."""
_CONNECT_S, _DOWNLOAD_S = 15.0, 600.0


@dataclass(frozen=True, slots=True)
class PackedFile:
    """Size and SHA-256 of a file as it is published."""

    num_bytes: int
    sha256: str


FILES: Mapping[str, PackedFile] = {
    "train-images-idx3-ubyte.gz": PackedFile(
        9_912_422, "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609"
    ),
    "train-labels-idx1-ubyte.gz": PackedFile(
        28_881, "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c"
    ),
    "t10k-images-idx3-ubyte.gz": PackedFile(
        1_648_877, "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6"
    ),
    "t10k-labels-idx1-ubyte.gz": PackedFile(
        4_542, "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6"
    ),
}
MIRRORS = (
    "https://ossci-datasets.s3.amazonaws.com/mnist/",
    "https://storage.googleapis.com/cvdf-datasets/mnist/",
)


def task(directory: Path | None) -> Task:
    """Build the task for the files in ``directory``; None: wherever they are."""
    folder = find_or_download(directory)
    found = idx.files(folder)
    assert found is not None
    made = images.task(folder)
    shape = made.samples("train").batch(torch.tensor([0]))[0].shape[-2:]
    counts = tuple(len(made.samples(split)) for split in ("train", "test"))
    if (counts, tuple(shape), len(made.classes)) != (COUNTS, _SHAPE, _CLASSES):
        text = f"{counts[0]:,} and {counts[1]:,} images of {len(made.classes)} classes"
        wanted = f"MNIST has {COUNTS[0]:,} and {COUNTS[1]:,} of {_CLASSES}"
        remedy = f"for other images use images:{folder}"
        raise ConfigError(f"task mnist: {folder} holds {text}, {wanted}; {remedy}")
    names = tuple(path.name for path in found)
    return replace(made, name="mnist", data=DataFiles(folder, names))


def find_or_download(directory: Path | None) -> Path:
    """Return a folder with the four files; ConfigError says how to get them."""
    cache = cache_folder() / "mnist"
    usual = (Path("data"), Path(), Path.home() / "data", cache)
    roots = (directory,) if directory is not None else usual
    for root in roots:
        for below in _BELOW:
            if idx.files(root / below) is not None:
                return root / below
    names = ", ".join(name.removesuffix(".gz") for name in FILES)
    if directory is not None:
        text = f"{directory} lacks one of {names}"
        raise ConfigError(f"task mnist: {text} (plain or .gz, or in MNIST/raw)")
    try:
        download(cache, FILES, MIRRORS)
    except ConfigError as exc:
        looked = ", ".join(str(root.absolute()) for root in roots)
        raise ConfigError(
            f"task mnist: its files are not in {looked}, and {exc}; put {names} (plain "
            f"or .gz) into a folder and write mnist:FOLDER"
        ) from exc
    return cache


def download(
    folder: Path, files: Mapping[str, PackedFile], mirrors: Sequence[str]
) -> None:
    """Download what ``folder`` lacks, each file from the first mirror that has it.

    Raises ConfigError with the reason of each mirror.
    """
    try:
        import httpx2
    except ImportError:
        text = "downloading them needs: pip install 'ringleader[internet]'"
        raise ConfigError(text) from None
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as exc:
        raise ConfigError(f"{folder} cannot be made: {exc.strerror}") from exc
    with httpx2.Client(timeout=_CONNECT_S, follow_redirects=True) as client:
        for name, packed in files.items():
            if not (folder / name).exists():
                _download_file(client, folder / name, packed, mirrors)


def _download_file(
    client: httpx2.Client, path: Path, packed: PackedFile, mirrors: Sequence[str]
) -> None:
    import httpx2

    reasons: list[str] = []
    for mirror in mirrors:
        try:
            data = _get(client, f"{mirror}{path.name}", packed.num_bytes)
        except (httpx2.HTTPError, httpx2.InvalidURL, ValueError) as exc:
            reasons.append(f"{mirror}: {str(exc) or type(exc).__name__}")
            continue
        if hashlib.sha256(data).hexdigest() != packed.sha256:
            reasons.append(f"{mirror}: {path.name} has another SHA-256 than MNIST's")
            continue
        _publish(path, data)
        return
    raise ConfigError(f"downloading {path.name} failed ({'; '.join(reasons)})")


def _get(client: httpx2.Client, url: str, num_bytes: int) -> bytes:
    deadline = Deadline.after(_DOWNLOAD_S)
    data = bytearray()
    with client.stream("GET", url) as response:
        response.raise_for_status()
        for block in response.iter_raw():
            data += block
            if len(data) > num_bytes:
                raise ValueError(f"more than the {num_bytes} bytes of the file")
            if deadline.is_over():
                raise ValueError(f"it took more than {_DOWNLOAD_S:.0f} s")
    return bytes(data)


def _publish(path: Path, data: bytes) -> None:
    new = path.with_name(f".new-{secrets.token_hex(4)}")
    try:
        new.write_bytes(data)
        os.replace(new, path)
    except OSError as exc:
        with suppress(OSError):
            new.unlink(missing_ok=True)
        raise ConfigError(f"{path} cannot be written: {exc.strerror}") from exc
