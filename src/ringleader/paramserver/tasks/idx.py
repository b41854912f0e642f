"""Reads IDX files, the format of MNIST: a header of big-endian numbers, then bytes."""

from __future__ import annotations

import gzip
import math
import struct
import zlib
from pathlib import Path
from typing import BinaryIO, Literal

import numpy as np
from numpy.typing import NDArray

from ringleader.errors import ConfigError

Bytes = NDArray[np.uint8]
Kind = Literal["images", "labels"]

_NAMES = {"train": "train", "test": "t10k"}
_DIMENSIONS = {"images": 3, "labels": 1}
_UNSIGNED_BYTE = 8
_MAX_BYTES = 4 << 30


def has_idx_files(directory: Path) -> bool:
    """Return whether ``directory`` holds IDX images to train with."""
    return _find(directory, "train", "images") is not None


def files(directory: Path) -> list[Path] | None:
    """Return the four files of ``directory``; None if one of them is missing."""
    kinds: tuple[Kind, ...] = ("images", "labels")
    found = [_find(directory, split, kind) for split in _NAMES for kind in kinds]
    present = [path for path in found if path is not None]
    return present if len(present) == len(found) else None


def images(directory: Path, split: str) -> Bytes:
    """Read all images of ``split``: (samples, height, width)."""
    return _read(directory, split, "images")


def labels(directory: Path, split: str) -> Bytes:
    """Read the labels of all images of ``split``."""
    return _read(directory, split, "labels")


def _find(directory: Path, split: str, kind: Kind) -> Path | None:
    """Find a file by either common name: train-images-idx3-ubyte, or with a dot."""
    for mark in "-.":
        name = f"{_NAMES[split]}-{kind}{mark}idx{_DIMENSIONS[kind]}-ubyte"
        for path in (directory / name, directory / f"{name}.gz"):
            if path.is_file():
                return path
    return None


def _read(directory: Path, split: str, kind: Kind) -> Bytes:
    path = _find(directory, split, kind)
    if path is None:
        name = f"{_NAMES[split]}-{kind}-idx{_DIMENSIONS[kind]}-ubyte"
        raise ConfigError(f"task images: there is no {directory / name}[.gz]")
    try:
        if path.suffix == ".gz":
            with gzip.open(path, "rb") as unpacked:
                return _parse(unpacked, path, _DIMENSIONS[kind])  # type: ignore[arg-type]
        with path.open("rb") as plain:
            return _parse(plain, path, _DIMENSIONS[kind])
    except (OSError, EOFError, zlib.error, struct.error) as exc:
        raise ConfigError(f"task images: {path} cannot be read: {exc}") from exc


def _parse(file: BinaryIO, path: Path, dimensions: int) -> Bytes:
    zero, kind, found = struct.unpack(">HBB", file.read(4))
    if (zero, kind, found) != (0, _UNSIGNED_BYTE, dimensions):
        text = f"{dimensions} dimensions of unsigned bytes"
        raise ConfigError(f"task images: {path} is not an IDX file of {text}")
    shape = struct.unpack(f">{found}I", file.read(4 * found))
    count = math.prod(shape)
    if count > _MAX_BYTES:
        raise ConfigError(
            f"task images: {path} claims {count} bytes, more than {_MAX_BYTES}"
        )
    data = file.read(count + 1)
    if len(data) != count:
        text = f"{len(data)} bytes or more follow a header that announces {count}"
        raise ConfigError(f"task images: {path}: {text}")
    return np.frombuffer(data, np.uint8).reshape(shape)
