"""What ranks tell each other while they save, as MessagePack.

DCP's own ``save`` sends the same facts pickled.
"""

from __future__ import annotations

from typing import TypeVar

import msgspec
import torch
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    MetadataIndex,
    TensorProperties,
)
from torch.distributed.checkpoint.planner import (
    SavePlan,
    TensorWriteData,
    WriteItem,
    WriteItemType,
)
from torch.distributed.checkpoint.storage import WriteResult

from ringleader.checkpoint import dtypes
from ringleader.checkpoint.manifest import Place
from ringleader.decoding import from_msgpack
from ringleader.errors import ConfigError

_T = TypeVar("_T")
_Sizes = tuple[int, ...]


class _Item(msgspec.Struct, frozen=True, array_like=True):
    """A tensor, a chunk of one, or (without a dtype) a value that a rank could save."""

    name: str
    kind: str
    offsets: _Sizes = ()
    sizes: _Sizes = ()
    shape: _Sizes = ()
    dtype: str = ""


class _Plan(msgspec.Struct, frozen=True, array_like=True):
    """All that a rank could save; ``paths`` leads from a name to the nested key."""

    items: list[_Item]
    paths: dict[str, tuple[str | int, ...]]


class Assignment(msgspec.Struct, frozen=True, array_like=True):
    """What rank 0 decides: for each rank, the numbers of the items that it writes."""

    checkpoint_id: str
    items: list[list[int]]


class _Written(msgspec.Struct, frozen=True, array_like=True):
    name: str
    offsets: _Sizes | None
    place: Place


def encode_plan(plan: SavePlan) -> bytes:
    """Return the plan of one rank; ConfigError names a dtype that cannot be saved."""
    paths = plan.planner_data or {}
    return msgspec.msgpack.encode(_Plan([_item(each) for each in plan.items], paths))


def decode_plan(data: bytes) -> SavePlan:
    """Return the plan of another rank; ConfigError if it is none."""
    plan = _decode(data, _Plan)
    try:
        items = [_write_item(each) for each in plan.items]
    except (KeyError, ValueError) as exc:
        raise ConfigError(f"not a plan to save: {exc}") from None
    return SavePlan(items, planner_data=plan.paths)


def encode_assignment(
    checkpoint_id: str, local: list[SavePlan], assigned: list[SavePlan]
) -> bytes:
    """Return which of its items each rank writes."""
    numbers: list[list[int]] = []
    for plan, chosen in zip(local, assigned, strict=True):
        order = {item.index: number for number, item in enumerate(plan.items)}
        numbers.append([order[item.index] for item in chosen.items])
    return msgspec.msgpack.encode(Assignment(checkpoint_id, numbers))


def decode_assignment(data: bytes, rank: int, plan: SavePlan) -> tuple[str, SavePlan]:
    """Return the checkpoint's id, and the part of ``plan`` that this rank writes."""
    assignment = _decode(data, Assignment)
    try:
        items = [plan.items[number] for number in assignment.items[rank]]
    except IndexError:
        raise ConfigError(f"rank 0 assigns no items to rank {rank}") from None
    return assignment.checkpoint_id, SavePlan(items)


def encode_results(results: list[WriteResult]) -> bytes:
    """Return where a rank has written its items."""
    return msgspec.msgpack.encode(
        [_Written(r.index.fqn, _offsets(r.index), r.storage_data) for r in results]
    )


def decode_results(data: bytes) -> list[WriteResult]:
    """Return where another rank has written its items."""
    return [
        WriteResult(
            MetadataIndex(each.name, each.offsets), each.place.num_bytes, each.place
        )
        for each in _decode(data, list[_Written])
    ]


def _decode(data: bytes, kind: type[_T]) -> _T:
    try:
        return from_msgpack(data, kind)
    except msgspec.MsgspecError as exc:
        text = f"a rank sent other bytes than a message about saving: {exc}"
        raise ConfigError(text[:200]) from None


def _item(item: WriteItem) -> _Item:
    tensor = item.tensor_data
    if tensor is None:
        return _Item(item.index.fqn, item.type.name)
    return _Item(
        item.index.fqn,
        item.type.name,
        tuple(tensor.chunk.offsets),
        tuple(tensor.chunk.sizes),
        tuple(tensor.size),
        dtypes.name_of(tensor.properties.dtype),
    )


def _write_item(item: _Item) -> WriteItem:
    kind = WriteItemType[item.kind]
    if kind is WriteItemType.BYTE_IO:
        return WriteItem(MetadataIndex(item.name), kind)
    if min((*item.offsets, *item.sizes, *item.shape), default=0) < 0:
        raise ValueError(f"{item.name}: a negative size")
    chunk = ChunkStorageMetadata(torch.Size(item.offsets), torch.Size(item.sizes))
    properties = TensorProperties(dtype=dtypes.dtype_of(item.dtype))
    return WriteItem(
        MetadataIndex(item.name, item.offsets),
        kind,
        tensor_data=TensorWriteData(chunk, properties, torch.Size(item.shape)),
    )


def _offsets(index: MetadataIndex) -> _Sizes | None:
    return None if index.offset is None else tuple(index.offset)
