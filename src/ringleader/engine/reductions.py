"""Reductions: one function per dtype and operation, on preallocated numpy arrays.

numpy does the arithmetic where it has the dtype: its calls cost a quarter of torch's
and never start threads. Halves and bfloat16 are stored as 16-bit integers and added by
torch in blocks small enough to stay on one thread (its grain size is 32768 elements).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextvars import Context, copy_context
from functools import lru_cache
from typing import Any

import numpy as np
import torch

from ringleader.engine.arrays import Array, dtype_name
from ringleader.errors import ConfigError

Combine = Callable[[Array, Array, Array], object]
"""(a, b, out): out = a combined with b, elementwise; out may be a or b."""
Divide = Callable[[Array], object]
"""Turns a sum into the result, in place."""

GRAIN = 32768
"""Elements up to which torch stays on one thread."""

_UFUNCS: dict[str, np.ufunc] = {
    "sum": np.add,
    "mean": np.add,
    "product": np.multiply,
    "min": np.minimum,
    "max": np.maximum,
    "band": np.bitwise_and,
    "bor": np.bitwise_or,
    "bxor": np.bitwise_xor,
}
# For bool, a sum is "any" and a product is "all", as in torch's NCCL backend.
_BOOL_UFUNCS: dict[str, np.ufunc] = {
    "sum": np.logical_or,
    "max": np.logical_or,
    "bor": np.logical_or,
    "product": np.logical_and,
    "min": np.logical_and,
    "band": np.logical_and,
    "bxor": np.logical_xor,
}
_TORCH_OPS: dict[str, Callable[..., torch.Tensor]] = {
    "sum": torch.add,
    "mean": torch.add,
    "product": torch.mul,
    "min": torch.minimum,
    "max": torch.maximum,
}


@lru_cache(maxsize=256)
def combine(dtype: torch.dtype, op: str) -> Combine:
    """The reduction ``op`` on arrays of ``dtype``; ConfigError if there is none."""
    _check(dtype, op)
    if dtype is torch.bool:
        return _BOOL_UFUNCS[op]
    if dtype is torch.complex32:
        return _through_torch(_TORCH_OPS[op], torch.float16, np.dtype(np.int16))
    if dtype in (torch.float16, torch.bfloat16):
        return _through_torch(_TORCH_OPS[op], dtype, np.dtype(np.int16))
    ufunc = _UFUNCS[op]
    if op in ("min", "max"):
        return lambda a, b, out: ufunc(a, b, out=out)  # positional out is deprecated
    return ufunc


def _check(dtype: torch.dtype, op: str) -> None:
    if op not in _UFUNCS:
        raise ConfigError(f"unknown reduction {op!r}; use one of {', '.join(_UFUNCS)}")
    name = dtype_name(dtype)
    is_bits = op in ("band", "bor", "bxor")
    floating = dtype.is_floating_point or dtype.is_complex
    if is_bits and floating:
        raise ConfigError(f"{op} works on integers and bool, not on {name}")
    if op == "mean" and dtype is torch.bool:
        raise ConfigError("mean is not defined for bool; convert the tensor first")
    if dtype.is_complex and op in ("min", "max"):
        raise ConfigError(f"{op} is not defined for {name}")
    if name.startswith("float8") or (name == "complex32" and op == "product"):
        raise ConfigError(f"{op} is not defined for {name}; convert the tensor first")


def _through_torch(
    operation: Callable[..., torch.Tensor], dtype: torch.dtype, bits: np.dtype[Any]
) -> Combine:
    def run(a: Array, b: Array, out: Array) -> None:
        a, b, out = a.view(bits), b.view(bits), out.view(bits)
        for i in range(0, len(out), GRAIN):
            j = i + GRAIN
            x, y, z = (torch.from_numpy(v[i:j]).view(dtype) for v in (a, b, out))
            operation(x, y, out=z)

    return run


def divide(array: Array, dtype: torch.dtype, by: int) -> None:
    """Turn a sum into a mean, in place; integers are truncated toward zero."""
    if dtype in (torch.float16, torch.bfloat16, torch.complex32):
        real = torch.float16 if dtype is torch.complex32 else dtype
        bits = array.view(np.int16)
        for i in range(0, len(bits), GRAIN):
            torch.from_numpy(bits[i : i + GRAIN]).view(real).div_(by)
    elif by.bit_count() == 1 and array.dtype.kind == "f":
        np.multiply(array, 1 / by, array)  # twice as fast, and no bit differs
    elif array.dtype.kind in "iu":
        for i in range(0, len(array), GRAIN):
            _divide_integers(array[i : i + GRAIN], by)
    else:
        np.divide(array, by, array)


def _divide_integers(array: Array, by: int) -> None:
    """Divide as C does, which is what NCCL does; ``//`` would round down."""
    # An int8 may be divided by more than it can hold: then in a wider type.
    fits = by <= np.iinfo(array.dtype).max
    wide = array if fits else array.astype(np.int64)
    np.subtract(wide, np.fmod(wide, by), wide)
    np.floor_divide(wide, by, array, casting="unsafe")


def divider(dtype: torch.dtype, by: int) -> Divide:
    """The function that divides arrays of ``dtype`` by ``by``, in place."""
    return lambda array: divide(array, dtype, by)


def combine_and_divide(combine: Combine, divide: Divide | None) -> Combine:
    """``combine``, followed by ``divide`` on its result."""
    if divide is None:
        return combine

    def run(a: Array, b: Array, out: Array) -> None:
        combine(a, b, out)
        divide(out)

    return run


def add_in_order(blocks: Sequence[Array], result: Array, combine: Combine) -> None:
    """Combine ``blocks`` in rank order into ``result``: equal bits on all ranks."""
    combine(blocks[0], blocks[1], result)
    if len(blocks) > 2:
        for block in blocks[2:]:
            combine(result, block, result)


def quiet_context() -> Context:
    """A context in which numpy does not warn of overflow and NaN: the values are the
    user's.

    Entering it costs a tenth of ``np.errstate``. Its numpy buffers are small: numpy
    copies the scales of rows that are shorter than its buffers, which makes codecs
    multiply at a third of the speed.
    """
    context = copy_context()
    context.run(np.seterr, all="ignore")
    context.run(np.setbufsize, 2048)
    return context
