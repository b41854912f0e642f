"""Builds calls from tensors, one function per operation.

The tensors are checked here and become arrays in tensors.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from zlib import crc32

import torch
from torch import Tensor

from ringleader.codec.registry import wire_name
from ringleader.engine import float_view
from ringleader.engine.arrays import Array
from ringleader.engine.call import Call, DeviceCopier
from ringleader.engine.reductions import combine
from ringleader.errors import ConfigError
from ringleader.groups.tensors import (
    CopyBack,
    Tensors,
    by_splits,
    check_dtypes,
    check_length,
    input_array,
    output_array,
    per_rank,
)


def all_reduce(tensor: Tensor, op: str, out: Tensor | None) -> Call:
    """Combine all ranks' ``tensor`` into ``out``, or in place."""
    combine(tensor.dtype, op)
    if out is not None and (out.dtype, out.numel()) != (tensor.dtype, tensor.numel()):
        text = f"{tensor.numel()} x {tensor.dtype} and {out.numel()} x {out.dtype}"
        raise ConfigError(f"all_reduce: tensor and out: {text} differ")
    copy_back: CopyBack = []
    target = tensor if out is None else out
    output = output_array(target, "all_reduce", copy_back)
    source = output if target is tensor else input_array(tensor, "all_reduce")
    call = _whole("all_reduce", tensor.dtype, source, output, copy_back)
    call.reduce_op = op
    return call


def all_reduce_device(
    copier: DeviceCopier, dtype: torch.dtype, count: int, op: str, copy_back: CopyBack
) -> Call:
    """Combine tensors that only ``copier`` can read and write, in place."""
    combine(dtype, op)
    call = _call("all_reduce", dtype, [None], [None], [count], copy_back)
    call.reduce_op, call.whole, call.device_copier = op, True, copier
    call.num_results = count
    return call


def reduce(tensor: Tensor, op: str, *, root: int, is_root: bool) -> Call:
    """Combine all ranks' ``tensor`` on the root; other ranks keep theirs."""
    combine(tensor.dtype, op)
    copy_back: CopyBack = []
    source = input_array(tensor, "reduce")
    output = output_array(tensor, "reduce", copy_back) if is_root else None
    call = _whole("reduce", tensor.dtype, source, output, copy_back)
    call.reduce_op, call.root = op, root
    return call


def broadcast(tensor: Tensor, *, root: int, is_root: bool) -> Call:
    """Copy the root's ``tensor`` to all ranks."""
    copy_back: CopyBack = []
    if is_root:
        array = input_array(tensor, "broadcast")
        call = _whole("broadcast", tensor.dtype, array, None, copy_back)
    else:
        array = output_array(tensor, "broadcast", copy_back)
        call = _whole("broadcast", tensor.dtype, None, array, copy_back)
    call.root = root
    return call


def all_gather(outs: Tensors, tensor: Tensor, *, rank: int, size: int) -> Call:
    """Copy all ranks' ``tensor`` to all ranks; lengths may differ if all know them."""
    copy_back: CopyBack = []
    source = input_array(tensor, "all_gather")
    check_dtypes(tensor, outs, "all_gather")
    outputs = per_rank(outs, size, "all_gather", copy_back)
    check_length(source, outputs[rank], "all_gather", rank)
    return _in_parts(
        "all_gather", tensor.dtype, _at(rank, size, source), outputs, copy_back
    )


def reduce_scatter(
    out: Tensor, tensors: Tensors, op: str, *, rank: int, size: int
) -> Call:
    """Combine all ranks' i-th tensor on rank i."""
    combine(out.dtype, op)
    copy_back: CopyBack = []
    check_dtypes(out, tensors, "reduce_scatter")
    inputs = per_rank(tensors, size, "reduce_scatter", None)
    output = output_array(out, "reduce_scatter", copy_back)
    check_length(inputs[rank], output, "reduce_scatter", rank)
    call = _in_parts(
        "reduce_scatter", out.dtype, inputs, _at(rank, size, output), copy_back
    )
    call.reduce_op = op
    return call


def gather(
    outs: Tensors | None, tensor: Tensor, *, root: int, rank: int, size: int
) -> Call:
    """Copy all ranks' ``tensor`` to the root. All have the same length."""
    copy_back: CopyBack = []
    source = input_array(tensor, "gather")
    check_dtypes(tensor, outs if rank == root else None, "gather")
    outputs: Sequence[Array | None] = [None] * size
    if rank == root:
        if outs is None:
            raise ConfigError("gather: the destination rank needs tensors for results")
        given = outputs = per_rank(outs, size, "gather", copy_back)
        for i, output in enumerate(given):
            check_length(source, output, "gather", i)
    inputs = _at(rank, size, source)
    return _equal_parts("gather", tensor.dtype, inputs, outputs, root, copy_back)


def scatter(
    out: Tensor, tensors: Tensors | None, *, root: int, rank: int, size: int
) -> Call:
    """Copy the root's i-th tensor to rank i. All have the same length."""
    copy_back: CopyBack = []
    output = output_array(out, "scatter", copy_back)
    check_dtypes(out, tensors if rank == root else None, "scatter")
    inputs: Sequence[Array | None] = [None] * size
    if rank == root:
        if tensors is None:
            raise ConfigError("scatter: the source rank needs tensors to scatter")
        given = inputs = per_rank(tensors, size, "scatter", None)
        for i, source in enumerate(given):
            check_length(source, output, "scatter", i)
    outputs = _at(rank, size, output)
    return _equal_parts("scatter", out.dtype, inputs, outputs, root, copy_back)


def all_to_all(
    out: Tensors,
    tensor: Tensors,
    out_splits: Sequence[int] | None,
    in_splits: Sequence[int] | None,
    *,
    rank: int,
    size: int,
) -> Call:
    """Copy the i-th part of ``tensor`` to rank i, for every rank at once."""
    copy_back: CopyBack = []
    outs = by_splits(out, out_splits, size, copy_back)
    sources = by_splits(tensor, in_splits, size, None)
    first = tensor if isinstance(tensor, Tensor) else tensor[0]
    check_dtypes(first, out, "all_to_all")
    check_length(sources[rank], outs[rank], "all_to_all", rank)
    nothing: list[Array | None] = [None] * (size * size)
    # Only the pair knows its lengths, so count and num_bytes stay 0, as elsewhere.
    zeros = [0] * (size * size)
    call = _call("all_to_all", first.dtype, nothing, nothing, zeros, copy_back)
    for peer in range(size):
        there, back = rank * size + peer, peer * size + rank
        call.inputs[there], call.lengths[there] = sources[peer], len(sources[peer])
        call.outputs[back], call.lengths[back] = outs[peer], len(outs[peer])
        call.pairs[peer] = (len(sources[peer]), len(outs[peer]))
    call.num_results = sum(map(len, outs))
    return call


def barrier() -> Call:
    """Wait for all ranks."""
    return _call("barrier", torch.uint8, [], [], [], [])


def example(operation: str, num_bytes: int) -> Call:
    """A call of this size without memory, to ask which algorithm it would get."""
    return _call(operation, torch.uint8, [], [], [num_bytes], [])


def encode(
    call: Call, codec: str | None, residual: Tensor | None, error_out: Tensor | None
) -> Call:
    """Let ``call`` travel as ``codec``, which may be None."""
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
        _check_floats(call, residual, "residual")
        call.residual = input_array(residual, call.operation)
    if error_out is not None:
        _check_floats(call, error_out, "error_out")
        call.error_out = output_array(error_out, call.operation, call.copy_back)
    call.codec, call.codec_name = codec, wire_name(codec)
    return call


def without_codec(
    tensor: Tensor,
    out: Tensor | None,
    residual: Tensor | None,
    error_out: Tensor | None,
) -> Tensor:
    """Add the residual and report no error, as a codec without loss would."""
    if residual is not None:
        tensor = tensor.detach().add_(residual) if out is None else tensor + residual
    if error_out is not None:
        error_out.zero_()
    return tensor


def _check_floats(call: Call, tensor: Tensor, what: str) -> None:
    if tensor.dtype is not torch.float32 or tensor.numel() != call.count:
        text = f"{tensor.numel()} x {tensor.dtype}, not {call.count} x torch.float32"
        raise ConfigError(f"{call.operation}: {what} is {text}")


def _whole(
    operation: str,
    dtype: torch.dtype,
    source: Array | None,
    output: Array | None,
    copy_back: CopyBack,
) -> Call:
    """A call with one chunk, which the algorithm splits."""
    array = output if source is None else source
    assert array is not None
    call = _call(operation, dtype, [source], [output], [len(array)], copy_back)
    call.whole = True
    return call


def _in_parts(
    operation: str,
    dtype: torch.dtype,
    inputs: Sequence[Array | None],
    outputs: Sequence[Array | None],
    copy_back: CopyBack,
) -> Call:
    """A call with one chunk per rank; ``count`` is that of all chunks."""
    pairs = zip(inputs, outputs, strict=True)
    lengths = [len(next(x for x in pair if x is not None)) for pair in pairs]
    call = _call(operation, dtype, inputs, outputs, lengths, copy_back)
    if len(set(lengths)) > 1:
        call.layout = crc32(b"".join(n.to_bytes(8, "little") for n in lengths)) or 1
    return call


def _equal_parts(
    operation: str,
    dtype: torch.dtype,
    inputs: Sequence[Array | None],
    outputs: Sequence[Array | None],
    root: int,
    copy_back: CopyBack,
) -> Call:
    """A call with one chunk of the same length per rank; ``count`` is that of one."""
    count = max(len(x) for x in (*inputs, *outputs) if x is not None)
    lengths = [count] * len(inputs)
    call = _call(operation, dtype, inputs, outputs, lengths, copy_back)
    call.root, call.count = root, count
    return call


def _call(
    operation: str,
    dtype: torch.dtype,
    inputs: Sequence[Array | None],
    outputs: Sequence[Array | None],
    lengths: list[int],
    copy_back: CopyBack,
) -> Call:
    count = sum(lengths)
    return Call(
        operation=operation,
        dtype=dtype,
        count=count,
        num_bytes=count * dtype.itemsize,
        inputs=list(inputs),
        outputs=list(outputs),
        lengths=lengths,
        num_results=sum(len(out) for out in outputs if out is not None),
        copy_back=copy_back,
    )


def _at(rank: int, size: int, array: Array) -> list[Array | None]:
    """``array`` as the chunk of ``rank``; this rank has no other chunk."""
    return [array if r == rank else None for r in range(size)]
