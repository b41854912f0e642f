"""Tensors as flat arrays: the only module in which tensors become arrays.

Nothing is copied except tensors that are not contiguous.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from ringleader.engine.arrays import Array, as_array, dtype_name
from ringleader.errors import ConfigError

Tensors = Tensor | Sequence[Tensor]
CopyBack = list[Callable[[], object]]
"""Copies from contiguous arrays into the user's tensors, made after the operation."""


def input_array(tensor: Tensor, what: str) -> Array:
    """The values of ``tensor`` as a flat array; a copy if it is not contiguous."""
    _check_cpu(tensor, what)
    if tensor.is_conj() or tensor.is_neg():
        tensor = tensor.resolve_conj().resolve_neg()
    return as_array(tensor.contiguous())


def output_array(tensor: Tensor, what: str, copy_back: CopyBack) -> Array:
    """A flat array for results: ``tensor`` itself, or a copy if not contiguous."""
    _check_cpu(tensor, what)
    if tensor.is_contiguous() and not tensor.is_conj() and not tensor.is_neg():
        return as_array(tensor)
    check_writable(tensor, what)
    stage = tensor.detach().contiguous()
    if stage.data_ptr() == tensor.data_ptr():
        stage = stage.clone()
    copy_back.append(lambda: tensor.detach().copy_(stage))
    return as_array(stage)


def check_writable(tensor: Tensor, what: str) -> None:
    """Raise ConfigError if elements of ``tensor`` share memory."""
    if tensor.is_contiguous():
        return
    dimensions = zip(tensor.shape, tensor.stride(), strict=True)
    if any(n > 1 and step == 0 for n, step in dimensions):
        text = "several elements of this tensor share one place in memory (expand())"
        text += "; nothing can be written to it, clone it first"
        raise ConfigError(f"{what}: {text}")


def check_dtypes(a: Tensor, b: Tensors | None, what: str) -> None:
    """Raise ConfigError unless all tensors have the dtype of ``a``.

    Arrays cannot tell: float16, bfloat16 and int16 all are 16-bit integers to numpy.
    """
    for other in [b] if isinstance(b, Tensor) else b or ():
        if other.dtype != a.dtype:
            text = f"{what}: input and output are {a.dtype} and {other.dtype}"
            raise ConfigError(f"{text}; convert one of them")


def check_tensor(tensor: object, what: str) -> None:
    """Raise ConfigError unless ``tensor`` is one."""
    if not isinstance(tensor, Tensor):
        raise ConfigError(f"{what}: expected a tensor, got {type(tensor).__name__}")


def _check_cpu(tensor: Tensor, what: str) -> None:
    check_tensor(tensor, what)
    if tensor.device.type != "cpu":
        text = f"{what}: the group moves CPU tensors, this one is on {tensor.device}"
        raise ConfigError(text)
    if tensor.layout is not torch.strided:
        text = f"{what}: the tensor must be dense (strided), not {tensor.layout}"
        raise ConfigError(text)
    dtype_name(tensor.dtype)


def check_length(source: Array, out: Array, what: str, rank: int) -> None:
    if len(source) != len(out):
        raise ConfigError(
            f"{what}: the tensor has {len(source)} elements, the part of rank {rank} "
            f"in the output {len(out)}"
        )


def per_rank(
    value: Tensors, size: int, what: str, copy_back: CopyBack | None
) -> list[Array]:
    """One array per rank, from a list of tensors or one tensor split evenly.

    Inputs if ``copy_back`` is None, else outputs.
    """
    if isinstance(value, Tensor):
        if value.numel() % size:
            text = f"{what}: {value.numel()} elements cannot be split into {size} parts"
            raise ConfigError(f"{text} of equal length")
        array = _array(value, what, copy_back)
        step = len(array) // size
        return [array[i * step : (i + 1) * step] for i in range(size)]
    if len(value) != size:
        raise ConfigError(f"{what}: {len(value)} tensors for {size} ranks")
    if len({t.dtype for t in value}) > 1:
        raise ConfigError(f"{what}: the tensors have different dtypes")
    return [_array(t, what, copy_back) for t in value]


def _array(tensor: Tensor, what: str, copy_back: CopyBack | None) -> Array:
    if copy_back is None:
        return input_array(tensor, what)
    return output_array(tensor, what, copy_back)


def by_splits(
    value: Tensors, splits: Sequence[int] | None, size: int, copy_back: CopyBack | None
) -> list[Array]:
    """One array per rank: a list, equal parts of one tensor, or ``splits`` rows."""
    what = "all_to_all"
    if not isinstance(value, Tensor) or splits is None:
        return per_rank(value, size, what, copy_back)
    if len(splits) != size or any(n < 0 for n in splits):
        raise ConfigError(f"{what}: splits {list(splits)} do not fit {size} ranks")
    rows = value.shape[0] if value.dim() else 0
    if sum(splits) != rows:
        text = f"splits {list(splits)} sum up to {sum(splits)}, not {rows}"
        raise ConfigError(f"{what}: {text}")
    array = _array(value, what, copy_back)
    width = len(array) // rows if rows else 0
    parts, start = [], 0
    for num_rows in splits:
        parts.append(array[start * width : (start + num_rows) * width])
        start += num_rows
    return parts
