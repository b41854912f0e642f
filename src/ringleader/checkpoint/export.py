"""Export: one safetensors file, or Hugging Face's layout, from the shards on disk."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import torch

from ringleader.checkpoint import dtypes
from ringleader.checkpoint.catalog import Found
from ringleader.checkpoint.manifest import SavedTensor
from ringleader.checkpoint.place_reader import DamagedCheckpoint, PlaceReader
from ringleader.checkpoint.storage import FolderStorage, Storage, write
from ringleader.decoding import from_json
from ringleader.errors import ConfigError
from ringleader.wire import tensor_file
from ringleader.wire.tensor_file import TensorSpec

_MODEL = "model."
_SHARD_BYTES = 5 << 30
"""Size of the files in Hugging Face's layout."""

_METADATA = {"format": "pt"}
"""Without it, transformers refuses a file."""


def export_file(storage: Storage, found: Found, target: Path) -> int:
    """Write the model's weights to one safetensors file; return its tensors."""
    tensors = _model_tensors(found)
    _write_file(storage, found, target, tensors)
    return len(tensors)


def export_hugging_face(
    storage: Storage, found: Found, target: Path, config: Path | None = None
) -> int:
    """Write the model's weights as ``transformers`` reads them; return the tensors.

    A model above 5 GiB is split, with an index of which tensor is in which file.
    ``config`` is copied to ``config.json``; the tokenizer is the user's to add.
    """
    tensors = _model_tensors(found)
    if config is not None:
        write(FolderStorage(target), "config.json", [_checked_config(config)])
    parts = _split(tensors)
    if len(parts) == 1:
        _write_file(storage, found, target / "model.safetensors", tensors)
        return len(tensors)
    index: dict[str, str] = {}
    for number, part in enumerate(parts, 1):
        name = f"model-{number:05d}-of-{len(parts):05d}.safetensors"
        _write_file(storage, found, target / name, part)
        index |= dict.fromkeys(part, name)
    total = sum(_spec(tensor).num_bytes for tensor in tensors.values())
    text = msgspec.json.encode({"metadata": {"total_size": total}, "weight_map": index})
    write(FolderStorage(target), "model.safetensors.index.json", [text])
    return len(tensors)


def _checked_config(path: Path) -> bytes:
    try:
        data = path.read_bytes()
        from_json(data, dict[str, Any])
    except (OSError, ValueError) as exc:
        raise ConfigError(f"{path}: not a configuration in JSON: {exc}") from None
    return data


def _model_tensors(found: Found) -> dict[str, SavedTensor]:
    """Return the model's tensors by the names that the plain model has."""
    tensors = found.manifest.tensors
    names = {n: t for n, t in tensors.items() if n.startswith(_MODEL)}
    if not names:
        raise ConfigError(f"{found.folder}: no model in this checkpoint")
    return {name.removeprefix(_MODEL): tensor for name, tensor in names.items()}


def _split(tensors: dict[str, SavedTensor]) -> list[dict[str, SavedTensor]]:
    parts: list[dict[str, SavedTensor]] = [{}]
    size = 0
    for name, tensor in tensors.items():
        num_bytes = _spec(tensor).num_bytes
        if parts[-1] and size + num_bytes > _SHARD_BYTES:
            parts.append({})
            size = 0
        parts[-1][name] = tensor
        size += num_bytes
    return parts


def _write_file(
    storage: Storage, found: Found, target: Path, tensors: dict[str, SavedTensor]
) -> None:
    header = tensor_file.header(
        {name: _spec(tensor) for name, tensor in tensors.items()}, _METADATA
    )

    reader = PlaceReader(storage, found.folder, found.manifest)
    where = f"{storage}/{found.folder}"

    def pieces() -> Iterator[bytes | memoryview]:
        yield header
        for name, tensor in tensors.items():
            whole = ((0,) * len(tensor.shape), tensor.shape)
            yield read_box(reader, where, name, tensor, whole)

    write(FolderStorage(target.parent), target.name, pieces())


Box = tuple[tuple[int, ...], tuple[int, ...]]
"""Offsets and sizes of a part of a tensor."""


def read_box(
    reader: PlaceReader, where: str, name: str, tensor: SavedTensor, box: Box
) -> memoryview:
    """Return the bytes of a part of a tensor, from the chunks that it overlaps.

    ``where`` is the checkpoint's folder, for errors.
    """
    dtype = dtypes.dtype_of(tensor.dtype)
    offsets, sizes = box
    part = torch.empty(sizes, dtype=dtype)
    for chunk in tensor.chunks:
        inside, outside = [], []
        for at, size, begin, length in zip(
            offsets, sizes, chunk.offsets, chunk.sizes, strict=True
        ):
            first, last = max(at, begin), min(at + size, begin + length)
            inside.append(slice(first - begin, last - begin))
            outside.append(slice(first - at, last - at))
        if any(each.start >= each.stop for each in inside):
            continue
        data = reader.read_here(chunk.place)
        if data is None:
            raise DamagedCheckpoint(
                f"{os.path.join(where, chunk.place.file)}: {name} is missing or "
                "damaged here; use a machine that holds all shards, or load the "
                "checkpoint on all machines together"
            )
        values = torch.frombuffer(bytearray(data), dtype=dtype).reshape(chunk.sizes)
        part[tuple(outside)] = values[tuple(inside)]
    return part.reshape(-1).view(torch.uint8).numpy().data


def _spec(tensor: SavedTensor) -> TensorSpec:
    return TensorSpec(tensor.dtype, tensor.shape)
