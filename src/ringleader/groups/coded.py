"""A call made ready to travel coded: checked, and cut into chunks."""

from __future__ import annotations

from itertools import accumulate, pairwise

import torch
from torch import Tensor

from ringleader.codec.registry import wire_name
from ringleader.engine import float_view
from ringleader.engine.arrays import Array
from ringleader.engine.coded_frames import Chunk
from ringleader.engine.float_view import Run
from ringleader.errors import ConfigError
from ringleader.groups.call import Call, cut, reading, writing


def code(
    call: Call, codec: str | None, owed: Tensor | None, lost: Tensor | None
) -> Call:
    """``call``, but coded on its way."""
    if codec is None:
        if owed is not None or lost is not None:
            text = "without a codec nothing is lost, and nothing owed"
            raise ConfigError(f"{call.operation}: {text}")
        return call
    float_view.check(call.dtype, codec)
    if call.reduce_op not in ("none", "sum", "mean"):
        text = f"{call.operation}: a codec goes with sum and mean, not {call.reduce_op}"
        raise ConfigError(text)
    if owed is not None:
        call.owed = reading(_fitting(call, owed, "owed"), call.operation)
    if lost is not None:
        _fitting(call, lost, "lost")
        call.lost = writing(lost, call.operation, call.finishers)
    call.codec, call.kind = codec, wire_name(codec)
    return call


def as_it_is(
    tensor: Tensor, out: Tensor | None, owed: Tensor | None, lost: Tensor | None
) -> tuple[Tensor, None, None]:
    """What a codec would have done with ``owed`` and ``lost``, where there is none."""
    if owed is not None:
        tensor = tensor.detach().add_(owed) if out is None else tensor + owed
    if lost is not None:
        lost.zero_()
    return tensor, None, None


def _fitting(call: Call, tensor: Tensor, what: str) -> Tensor:
    if tensor.dtype is not torch.float32 or tensor.numel() != call.count:
        text = f"{tensor.numel()} x {tensor.dtype}, not {call.count} x torch.float32"
        raise ConfigError(f"{call.operation}: {what} is {text}")
    return tensor


def chunks_of(call: Call, num_chunks: int) -> list[Chunk]:
    """The memory of every chunk: what is brought, where to put it and what was lost."""
    sources, homes, lengths = call.sources, call.homes, call.lengths
    if call.whole:
        sources, homes, lengths = cut(call, num_chunks)
    bounds = [slice(*pair) for pair in pairwise(accumulate(lengths, initial=0))]
    return [
        Chunk(
            at.stop - at.start,
            None if source is None else Run(source, call.dtype, _part(call.owed, at)),
            None if home is None else Run(home, call.dtype),
            _part(call.lost, at),
        )
        for at, source, home in zip(bounds, sources, homes, strict=True)
    ]


def _part(array: Array | None, at: slice) -> Array | None:
    return None if array is None else array[at]
