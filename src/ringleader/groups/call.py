"""A collective call made ready: tensors checked, seen as arrays, cut into chunks.

Pure but for the copies it makes of tensors that are not contiguous.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar
from zlib import crc32

import torch
from torch import Tensor

from ringleader.collectives.schedule import split
from ringleader.engine import arrays, reductions
from ringleader.engine.arrays import Array
from ringleader.engine.relay import Carrier
from ringleader.errors import ConfigError


@dataclass(slots=True, eq=False, kw_only=True)
class Call:
    """One collective as the engine sees it.

    Per chunk there is a source (what this rank brings; None: nothing) and a home (where
    the result goes; None: nowhere). A ``whole`` call has one chunk that the algorithm
    cuts further as it likes.
    """

    operation: str
    dtype: torch.dtype
    count: int
    num_bytes: int
    """What the choice of the algorithm goes by; equal on all ranks."""
    sources: list[Array | None]
    homes: list[Array | None]
    lengths: list[int]
    whole: bool = False
    reduce_op: str = "none"
    root: int | None = None
    layout: int = 0
    """Stands for ``lengths`` where they differ: ranks must agree on them."""
    codec: str | None = None
    """How it travels; None: as it is."""
    kind: str = "none"
    """The codec as the wire calls it: without its seed."""
    residual: Array | None = None
    """float32, one per element of the sources, to be added to them."""
    error_out: Array | None = None
    """The same, to be written: what encoding lost."""
    pairs: dict[int, tuple[int, int]] = field(default_factory=dict)
    """all_to_all only: peer -> (elements to it, elements from it)."""
    finishers: list[Callable[[], object]] = field(default_factory=list)
    """Copies back into tensors that were not contiguous."""
    carrier: Carrier | None = None
    """Who reads and writes the tensor; then there is neither source nor home."""


T = TypeVar("T")


def some(value: T | None) -> T:
    """What is known to be there."""
    assert value is not None
    return value


def _check_cpu(tensor: Tensor, what: str) -> None:
    if not isinstance(tensor, Tensor):
        raise ConfigError(f"{what}: expected a tensor, got {type(tensor).__name__}")
    if tensor.device.type != "cpu":
        text = f"{what}: the group moves CPU tensors, this one is on {tensor.device}"
        raise ConfigError(text)
    if tensor.layout is not torch.strided:
        raise ConfigError(f"{what}: only dense tensors travel, not {tensor.layout}")
    arrays.dtype_name(tensor.dtype)


def reading(tensor: Tensor, what: str) -> Array:
    """The values of ``tensor`` as a flat array; a copy if it is not contiguous."""
    _check_cpu(tensor, what)
    if tensor.is_conj() or tensor.is_neg():
        tensor = tensor.resolve_conj().resolve_neg()
    return arrays.as_array(tensor.contiguous())


def writing(tensor: Tensor, what: str, finishers: list[Callable[[], object]]) -> Array:
    """A flat array to write results to; copied back at the end where it must be."""
    _check_cpu(tensor, what)
    if tensor.is_contiguous() and not tensor.is_conj() and not tensor.is_neg():
        return arrays.as_array(tensor)
    check_writable(tensor, what)
    stage = tensor.detach().contiguous()
    if stage.data_ptr() == tensor.data_ptr():
        stage = stage.clone()
    finishers.append(lambda: tensor.detach().copy_(stage))
    return arrays.as_array(stage)


def check_writable(tensor: Tensor, what: str) -> None:
    """Raise unless every element has a place of its own."""
    dimensions = zip(tensor.shape, tensor.stride(), strict=True)
    if any(n > 1 and step == 0 for n, step in dimensions):
        text = "several elements of this tensor share one place in memory (expand())"
        text += "; nothing can be written to it, clone it first"
        raise ConfigError(f"{what}: {text}")


def _same(a: Tensor, b: Tensor, what: str) -> None:
    if a.dtype != b.dtype or a.numel() != b.numel():
        text = f"{what}: {a.numel()} x {a.dtype} and {b.numel()} x {b.dtype} differ"
        raise ConfigError(text)


def pieces(
    value: Tensor | Sequence[Tensor],
    size: int,
    what: str,
    finishers: list[Callable[[], object]] | None,
) -> list[Array]:
    """One array per rank, from a list of tensors or one tensor cut evenly."""
    if isinstance(value, Tensor):
        if value.numel() % size:
            text = f"{what}: {value.numel()} elements in {size} equal parts do not go"
            raise ConfigError(text)
        array = _array(value, what, finishers)
        step = len(array) // size
        return [array[i * step : (i + 1) * step] for i in range(size)]
    if len(value) != size:
        raise ConfigError(f"{what}: {len(value)} tensors for {size} ranks")
    if len({t.dtype for t in value}) > 1:
        raise ConfigError(f"{what}: the tensors have different dtypes")
    return [_array(t, what, finishers) for t in value]


def _array(
    tensor: Tensor, what: str, finishers: list[Callable[[], object]] | None
) -> Array:
    if finishers is None:
        return reading(tensor, what)
    return writing(tensor, what, finishers)


def all_reduce(tensor: Tensor, op: str, out: Tensor | None) -> Call:
    """Sum (or ``op``) of everybody's tensor, in ``out`` or in place."""
    reductions.combine(tensor.dtype, op)
    if out is not None:
        _same(tensor, out, "all_reduce: tensor and out")
    finishers: list[Callable[[], object]] = []
    target = tensor if out is None else out
    home = writing(target, "all_reduce", finishers)
    source = home if target is tensor else reading(tensor, "all_reduce")
    return Call(
        operation="all_reduce",
        dtype=tensor.dtype,
        reduce_op=op,
        count=len(source),
        num_bytes=source.nbytes,
        sources=[source],
        homes=[home],
        lengths=[len(source)],
        whole=True,
        finishers=finishers,
    )


def all_reduce_carried(
    carrier: Carrier,
    dtype: torch.dtype,
    count: int,
    op: str,
    finishers: list[Callable[[], object]],
) -> Call:
    """The same of a tensor that lies where only ``carrier`` can reach it."""
    reductions.combine(dtype, op)
    return Call(
        operation="all_reduce",
        dtype=dtype,
        reduce_op=op,
        count=count,
        num_bytes=count * dtype.itemsize,
        sources=[None],
        homes=[None],
        lengths=[count],
        whole=True,
        carrier=carrier,
        finishers=finishers,
    )


def reduce(tensor: Tensor, op: str, *, root: int, is_root: bool) -> Call:
    """Like all_reduce, but only the root gets the result; others keep their tensor."""
    reductions.combine(tensor.dtype, op)
    finishers: list[Callable[[], object]] = []
    source = reading(tensor, "reduce")
    home: Array | None = None
    if is_root:
        home = writing(tensor, "reduce", finishers)
    return Call(
        operation="reduce",
        dtype=tensor.dtype,
        reduce_op=op,
        root=root,
        count=len(source),
        num_bytes=source.nbytes,
        sources=[source],
        homes=[home],
        lengths=[len(source)],
        whole=True,
        finishers=finishers,
    )


def broadcast(tensor: Tensor, *, root: int, is_root: bool) -> Call:
    """The root's tensor everywhere."""
    finishers: list[Callable[[], object]] = []
    if is_root:
        array = reading(tensor, "broadcast")
    else:
        array = writing(tensor, "broadcast", finishers)
    return Call(
        operation="broadcast",
        dtype=tensor.dtype,
        root=root,
        count=len(array),
        num_bytes=array.nbytes,
        sources=[array if is_root else None],
        homes=[None if is_root else array],
        lengths=[len(array)],
        whole=True,
        finishers=finishers,
    )


def all_gather(
    outs: Tensor | Sequence[Tensor], tensor: Tensor, *, rank: int, size: int
) -> Call:
    """Everybody's tensor everywhere; lengths may differ if all ranks know them."""
    finishers: list[Callable[[], object]] = []
    source = reading(tensor, "all_gather")
    check_dtypes(tensor, outs, "all_gather")
    homes = pieces(outs, size, "all_gather", finishers)
    _check_piece(source, homes[rank], "all_gather", rank)
    sources: list[Array | None] = [None] * size
    sources[rank] = source
    lengths = [len(h) for h in homes]
    return Call(
        operation="all_gather",
        dtype=tensor.dtype,
        count=sum(lengths),
        num_bytes=sum(lengths) * source.itemsize,
        sources=sources,
        homes=list(homes),
        lengths=lengths,
        layout=_layout(lengths),
        finishers=finishers,
    )


def _layout(lengths: list[int]) -> int:
    """0 if all are equal, else a number that stands for them."""
    if len(set(lengths)) <= 1:
        return 0
    return crc32(b"".join(n.to_bytes(8, "little") for n in lengths)) or 1


def _check_piece(source: Array, home: Array, what: str, rank: int) -> None:
    if len(source) != len(home):
        text = (
            f"{what}: the tensor has {len(source)} elements, the place of rank {rank} "
            f"in the output {len(home)}"
        )
        raise ConfigError(text)


def check_dtypes(a: Tensor, b: Tensor | Sequence[Tensor] | None, what: str) -> None:
    """Not by their arrays: float16, bfloat16 and int16 all are 16 bits to numpy."""
    for other in [b] if isinstance(b, Tensor) else b or ():
        if other.dtype != a.dtype:
            text = f"{what}: input and output are {a.dtype} and {other.dtype}"
            raise ConfigError(f"{text}; convert one of them")


def reduce_scatter(
    out: Tensor, tensors: Tensor | Sequence[Tensor], op: str, *, rank: int, size: int
) -> Call:
    """Rank i gets the sum of everybody's i-th tensor."""
    reductions.combine(out.dtype, op)
    finishers: list[Callable[[], object]] = []
    check_dtypes(out, tensors, "reduce_scatter")
    sources = pieces(tensors, size, "reduce_scatter", None)
    home = writing(out, "reduce_scatter", finishers)
    _check_piece(sources[rank], home, "reduce_scatter", rank)
    homes: list[Array | None] = [None] * size
    homes[rank] = home
    lengths = [len(s) for s in sources]
    return Call(
        operation="reduce_scatter",
        dtype=out.dtype,
        reduce_op=op,
        count=sum(lengths),
        num_bytes=sum(lengths) * home.itemsize,
        sources=list(sources),
        homes=homes,
        lengths=lengths,
        layout=_layout(lengths),
        finishers=finishers,
    )


def gather(
    outs: Tensor | Sequence[Tensor] | None,
    tensor: Tensor,
    *,
    root: int,
    rank: int,
    size: int,
) -> Call:
    """Everybody's tensor on the root. All have the same length."""
    finishers: list[Callable[[], object]] = []
    source = reading(tensor, "gather")
    check_dtypes(tensor, outs if rank == root else None, "gather")
    homes: list[Array | None] = [None] * size
    if rank == root:
        if outs is None:
            raise ConfigError("gather: the root needs a place for the result")
        given = pieces(outs, size, "gather", finishers)
        for i, home in enumerate(given):
            _check_piece(source, home, "gather", i)
        homes = list(given)
    sources: list[Array | None] = [None] * size
    sources[rank] = source
    return Call(
        operation="gather",
        dtype=tensor.dtype,
        root=root,
        count=len(source),
        num_bytes=source.nbytes * size,
        sources=sources,
        homes=homes,
        lengths=[len(source)] * size,
        finishers=finishers,
    )


def scatter(
    out: Tensor,
    tensors: Tensor | Sequence[Tensor] | None,
    *,
    root: int,
    rank: int,
    size: int,
) -> Call:
    """The root's i-th tensor on rank i. All have the same length."""
    finishers: list[Callable[[], object]] = []
    home = writing(out, "scatter", finishers)
    check_dtypes(out, tensors if rank == root else None, "scatter")
    sources: list[Array | None] = [None] * size
    if rank == root:
        if tensors is None:
            raise ConfigError("scatter: the root needs something to scatter")
        given = pieces(tensors, size, "scatter", None)
        for i, source in enumerate(given):
            _check_piece(source, home, "scatter", i)
        sources = list(given)
    homes: list[Array | None] = [None] * size
    homes[rank] = home
    return Call(
        operation="scatter",
        dtype=out.dtype,
        root=root,
        count=len(home),
        num_bytes=home.nbytes * size,
        sources=sources,
        homes=homes,
        lengths=[len(home)] * size,
        finishers=finishers,
    )


def all_to_all(
    outs: list[Array],
    sources: list[Array],
    dtype: torch.dtype,
    finishers: list[Callable[[], object]],
    *,
    rank: int,
) -> Call:
    """``sources[i]`` goes to rank i, ``outs[i]`` comes from rank i."""
    size = len(outs)
    _check_piece(sources[rank], outs[rank], "all_to_all", rank)
    chunk_sources: list[Array | None] = [None] * (size * size)
    chunk_homes: list[Array | None] = [None] * (size * size)
    lengths = [0] * (size * size)
    pairs = {}
    for peer in range(size):
        chunk_sources[rank * size + peer] = sources[peer]
        chunk_homes[peer * size + rank] = outs[peer]
        lengths[rank * size + peer] = len(sources[peer])
        lengths[peer * size + rank] = len(outs[peer])
        pairs[peer] = (len(sources[peer]), len(outs[peer]))
    return Call(
        operation="all_to_all",
        dtype=dtype,
        count=0,
        num_bytes=0,
        sources=chunk_sources,
        homes=chunk_homes,
        lengths=lengths,
        pairs=pairs,
        finishers=finishers,
    )


def split_all_to_all(
    value: Tensor | Sequence[Tensor],
    splits: Sequence[int] | None,
    size: int,
    finishers: list[Callable[[], object]] | None,
) -> list[Array]:
    """Per-rank arrays of an all_to_all side: a list, or one tensor with row splits."""
    what = "all_to_all"
    if not isinstance(value, Tensor) or splits is None:
        return pieces(value, size, what, finishers)
    if len(splits) != size or any(n < 0 for n in splits):
        raise ConfigError(f"{what}: splits {list(splits)} do not fit {size} ranks")
    rows = value.shape[0] if value.dim() else 0
    if sum(splits) != rows:
        raise ConfigError(
            f"{what}: splits {list(splits)} sum up to {sum(splits)}, not {rows}"
        )
    array = _array(value, what, finishers)
    width = len(array) // rows if rows else 0
    arrays, start = [], 0
    for num_rows in splits:
        arrays.append(array[start * width : (start + num_rows) * width])
        start += num_rows
    return arrays


def cut(
    call: Call, num_chunks: int
) -> tuple[list[Array | None], list[Array | None], list[int]]:
    """A whole call in the chunks of its algorithm."""
    cuts = split(call.lengths[0], num_chunks)
    source, home = call.sources[0], call.homes[0]
    return (
        [None if source is None else source[a:b] for a, b in cuts],
        [None if home is None else home[a:b] for a, b in cuts],
        [b - a for a, b in cuts],
    )
