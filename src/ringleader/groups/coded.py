"""A call made ready to travel coded: checked, and cut into chunks."""

from __future__ import annotations

from itertools import accumulate, pairwise

import torch
from torch import Tensor

from ringleader.codec import wire_name
from ringleader.engine import values
from ringleader.engine.frames import Chunk
from ringleader.engine.kernel import Array
from ringleader.engine.values import Run
from ringleader.errors import ConfigError
from ringleader.groups.call import Call, cut, writing


def code(call: Call, codec: str | None, lost: Tensor | None) -> Call:
    """``call``, but coded on its way."""
    if codec is None:
        if lost is not None:
            raise ConfigError(f"{call.operation}: without a codec nothing is lost")
        return call
    wire_name(codec)
    values.check(call.dtype, codec)
    if call.reduce_op not in ("none", "sum", "mean"):
        text = f"{call.operation}: a codec goes with sum and mean, not {call.reduce_op}"
        raise ConfigError(text)
    if lost is not None:
        if lost.dtype is not torch.float32 or lost.numel() != call.count:
            text = f"{lost.numel()} x {lost.dtype}, not {call.count} x torch.float32"
            raise ConfigError(f"{call.operation}: lost is {text}")
        call.lost = writing(lost, call.operation, call.finishers)
    call.codec = codec
    return call


def chunks_of(call: Call, num_chunks: int) -> list[Chunk]:
    """The memory of every chunk: what is brought, where to put it and what was lost."""
    sources, homes, lengths = call.sources, call.homes, call.lengths
    if call.whole:
        sources, homes, lengths = cut(call, num_chunks)
    chunks = [
        Chunk(length, _run(source, call.dtype), _run(home, call.dtype))
        for length, source, home in zip(lengths, sources, homes, strict=True)
    ]
    if call.lost is not None:
        bounds = pairwise(accumulate(lengths, initial=0))
        for chunk, (start, stop) in zip(chunks, bounds, strict=True):
            chunk.lost = Run(call.lost[start:stop], torch.float32)
    return chunks


def _run(array: Array | None, dtype: torch.dtype) -> Run | None:
    return None if array is None else Run(array, dtype)
