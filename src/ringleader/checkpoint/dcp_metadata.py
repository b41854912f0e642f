"""The manifest in the terms of DCP, and back."""

from __future__ import annotations

from typing import Any

import torch
from torch.distributed.checkpoint.metadata import (
    BytesStorageMetadata,
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)

from ringleader.checkpoint import dtypes
from ringleader.checkpoint.manifest import Chunk, Manifest, Place, SavedTensor


def as_metadata(of: Manifest) -> Metadata:
    """Return a manifest as DCP's metadata; ``storage_data`` has the places."""
    entries: dict[str, Any] = {name: BytesStorageMetadata() for name in of.values}
    places = {MetadataIndex(name): place for name, place in of.values.items()}
    for name, tensor in of.tensors.items():
        entries[name] = TensorStorageMetadata(
            TensorProperties(dtype=dtypes.dtype_of(tensor.dtype)),
            torch.Size(tensor.shape),
            [
                ChunkStorageMetadata(torch.Size(c.offsets), torch.Size(c.sizes))
                for c in tensor.chunks
            ],
        )
        for chunk in tensor.chunks:
            places[MetadataIndex(name, chunk.offsets)] = chunk.place
    return Metadata(entries, planner_data=of.paths, storage_data=places)


def saved_tensors(
    metadata: Metadata, places: dict[MetadataIndex, Place]
) -> dict[str, SavedTensor]:
    """Return the tensors that DCP planned, each chunk with its place."""
    found: dict[str, SavedTensor] = {}
    for name, entry in metadata.state_dict_metadata.items():
        if isinstance(entry, TensorStorageMetadata):
            chunks = tuple(
                Chunk(
                    tuple(c.offsets),
                    tuple(c.sizes),
                    places[MetadataIndex(name, c.offsets)],
                )
                for c in entry.chunks
            )
            dtype = dtypes.name_of(entry.properties.dtype)
            found[name] = SavedTensor(dtype, tuple(entry.size), chunks)
    return found
