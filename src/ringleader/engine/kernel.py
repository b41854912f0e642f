"""Reductions: one function per dtype and operation, on preallocated numpy arrays.

numpy does the arithmetic where it has the dtype: its calls cost a quarter of torch's
and never start threads. Halves and bfloat16 are stored as 16-bit integers and added by
torch in blocks small enough to stay on one thread (its grain size is 32768 elements).
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import Context, copy_context
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ringleader.errors import ConfigError

Array = NDArray[Any]
Combine = Callable[[Array, Array, Array], object]
"""(a, b, out): out = a combined with b, elementwise; out may be a or b."""

GRAIN = 32768

# How each torch dtype is seen by numpy. Where numpy lacks the dtype the bits are kept.
_STORAGE: dict[torch.dtype, type[np.generic]] = {
    torch.bool: np.bool_,
    torch.uint8: np.uint8,
    torch.int8: np.int8,
    torch.int16: np.int16,
    torch.int32: np.int32,
    torch.int64: np.int64,
    torch.uint16: np.uint16,
    torch.uint32: np.uint32,
    torch.uint64: np.uint64,
    torch.float32: np.float32,
    torch.float64: np.float64,
    torch.complex64: np.complex64,
    torch.complex128: np.complex128,
    torch.float16: np.int16,
    torch.bfloat16: np.int16,
    torch.complex32: np.int32,
    torch.float8_e4m3fn: np.uint8,
    torch.float8_e5m2: np.uint8,
    torch.float8_e4m3fnuz: np.uint8,
    torch.float8_e5m2fnuz: np.uint8,
}

_TYPES = {dtype: np.dtype(kind).str for dtype, kind in _STORAGE.items()}

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


def dtype_name(dtype: torch.dtype) -> str:
    """The name on the wire; ConfigError for dtypes that do not travel."""
    if dtype not in _STORAGE:
        raise ConfigError(f"tensors of {dtype} cannot be sent")
    return str(dtype).removeprefix("torch.")


class _Window:
    """Memory in the words that numpy asks for."""

    __slots__ = ("__array_interface__", "tensor")

    def __init__(
        self, place: int, count: int, typestr: str, tensor: torch.Tensor | None
    ) -> None:
        self.tensor = tensor  # lives as long as the array does
        self.__array_interface__ = {
            "data": (place, False),
            "shape": (count,),
            "typestr": typestr,
            "version": 3,
        }


def as_array(tensor: torch.Tensor) -> Array:
    """The memory of a contiguous CPU ``tensor`` as a flat array, without a copy.

    Not by ``tensor.numpy()``, which forbids for good that the tensor is resized, as
    FSDP does between steps.
    """
    place, count = tensor.data_ptr(), tensor.numel()
    if not place and count:
        kind = type(tensor).__name__
        raise ConfigError(f"this {kind} has no memory of its own and cannot be sent")
    return np.asarray(_Window(place, count, _TYPES[tensor.dtype], tensor))


def address(array: Array) -> int:
    """Where the elements of ``array`` begin."""
    place: int = array.__array_interface__["data"][0]
    return place


def at(place: int, count: int, dtype: np.dtype[Any]) -> Array:
    """The elements at an address. Whoever uses them sees to it that they are there."""
    return np.asarray(_Window(place, count, dtype.str, None))


def bytes_of(array: Array) -> memoryview:
    """The bytes of a contiguous array."""
    return memoryview(array.view(np.uint8))  # type: ignore[arg-type]


def storage(dtype: torch.dtype) -> np.dtype[Any]:
    """The numpy dtype of ``as_array`` for tensors of ``dtype``."""
    return np.dtype(_STORAGE[dtype])


@lru_cache(maxsize=256)
def combine(dtype: torch.dtype, op: str) -> Combine:
    """The reduction ``op`` on arrays of ``dtype``; ConfigError where it has none."""
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
        raise ConfigError(f"no reduction {op!r}; there are: {', '.join(_UFUNCS)}")
    name = dtype_name(dtype)
    is_bits = op in ("band", "bor", "bxor")
    floating = dtype.is_floating_point or dtype.is_complex
    if is_bits and floating:
        raise ConfigError(f"{op} works on integers and bool, not on {name}")
    if op == "mean" and not floating:
        text = f"the mean of {name} is not {name}: use sum, or a floating-point tensor"
        raise ConfigError(text)
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
    """Turn a sum into a mean, in place."""
    if dtype in (torch.float16, torch.bfloat16, torch.complex32):
        real = torch.float16 if dtype is torch.complex32 else dtype
        bits = array.view(np.int16)
        for i in range(0, len(bits), GRAIN):
            torch.from_numpy(bits[i : i + GRAIN]).view(real).div_(by)
    elif by.bit_count() == 1 and array.dtype.kind == "f":
        np.multiply(array, 1 / by, array)  # twice as fast, and no bit differs
    else:
        np.divide(array, by, array)


def and_divide(combine: Combine, dtype: torch.dtype, by: int) -> Combine:
    """``combine``, and turn the sum into a mean."""

    def run(a: Array, b: Array, out: Array) -> None:
        combine(a, b, out)
        divide(out, dtype, by)

    return run


def quiet_context() -> Context:
    """A context in which numpy says nothing of overflow and NaN: they are the user's.

    Entering it costs a tenth of what ``np.errstate`` does. Buffers are small in it:
    numpy copies the scales of rows that are shorter than its buffers, which makes
    codecs multiply at a third of the speed.
    """
    context = copy_context()
    context.run(np.seterr, all="ignore")
    context.run(np.setbufsize, 2048)
    return context
