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
    call: Call, codec: str | None, residual: Tensor | None, error_out: Tensor | None
) -> Call:
    """``call``, but coded on its way."""
    if codec is None:
        if residual is not None or error_out is not None:
            text = "residual and error_out need a codec"
            raise ConfigError(f"{call.operation}: {text}")
        return call
    float_view.check(call.dtype, codec)
    if call.reduce_op not in ("none", "sum", "mean"):
        text = f"{call.operation}: a codec goes with sum and mean, not {call.reduce_op}"
        raise ConfigError(text)
    if residual is not None:
        call.residual = reading(_fitting(call, residual, "residual"), call.operation)
    if error_out is not None:
        _fitting(call, error_out, "error_out")
        call.error_out = writing(error_out, call.operation, call.finishers)
    call.codec, call.kind = codec, wire_name(codec)
    return call


def as_it_is(
    tensor: Tensor,
    out: Tensor | None,
    residual: Tensor | None,
    error_out: Tensor | None,
) -> tuple[Tensor, None, None]:
    """Add the residual and report no error, as a codec without loss would."""
    if residual is not None:
        tensor = tensor.detach().add_(residual) if out is None else tensor + residual
    if error_out is not None:
        error_out.zero_()
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
            None
            if source is None
            else Run(source, call.dtype, _part(call.residual, at)),
            None if home is None else Run(home, call.dtype),
            _part(call.error_out, at),
        )
        for at, source, home in zip(bounds, sources, homes, strict=True)
    ]


def _part(array: Array | None, at: slice) -> Array | None:
    return None if array is None else array[at]
