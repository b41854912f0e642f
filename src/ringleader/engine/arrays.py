"""Tensors and raw memory as flat numpy arrays, without copies."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ringleader.errors import ConfigError

Array = NDArray[Any]
Bytes = NDArray[np.uint8]

# The numpy dtype that holds each torch dtype; the same bits where numpy lacks it.
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


def dtype_name(dtype: torch.dtype) -> str:
    """The name of ``dtype`` on the wire; ConfigError if it cannot be sent."""
    if dtype not in _STORAGE:
        raise ConfigError(f"tensors of {dtype} cannot be sent; convert them first")
    return str(dtype).removeprefix("torch.")


_BY_NAME = {str(dtype).removeprefix("torch."): dtype for dtype in _STORAGE}


def dtype_of(name: str) -> torch.dtype:
    """The dtype of a name on the wire; KeyError if there is none."""
    return _BY_NAME[name]


def item_sizes() -> dict[str, int]:
    """The bytes of an element of each dtype, by the name of the dtype."""
    return {name: dtype.itemsize for name, dtype in _BY_NAME.items()}


class _Window:
    """Memory as an object that numpy can turn into an array."""

    __slots__ = ("__array_interface__", "tensor")

    def __init__(
        self, address: int, count: int, typestr: str, tensor: torch.Tensor | None
    ) -> None:
        self.tensor = tensor  # keeps the memory alive as long as the array
        self.__array_interface__ = {
            "data": (address, False),
            "shape": (count,),
            "typestr": typestr,
            "version": 3,
        }


def as_array(tensor: torch.Tensor) -> Array:
    """The memory of a contiguous CPU ``tensor`` as a flat array, without a copy.

    ``tensor.numpy()`` is not used, because it forbids for good that the tensor is
    resized, which FSDP does between steps.
    """
    address, count = tensor.data_ptr(), tensor.numel()
    if not address and count:
        kind = type(tensor).__name__
        raise ConfigError(f"this {kind} has no memory of its own and cannot be sent")
    return np.asarray(_Window(address, count, _TYPES[tensor.dtype], tensor))


def address_of(array: Array) -> int:
    """The address of the first element of ``array``."""
    start: int = array.__array_interface__["data"][0]
    return start


def array_at(address: int, count: int, dtype: np.dtype[Any]) -> Array:
    """The elements at an address. The caller keeps their memory alive."""
    return np.asarray(_Window(address, count, dtype.str, None))


def bytes_of(array: Array) -> memoryview:
    """The bytes of a contiguous array."""
    return memoryview(array.view(np.uint8))  # type: ignore[arg-type]


def storage_dtype(dtype: torch.dtype) -> np.dtype[Any]:
    """The numpy dtype of ``as_array`` for tensors of ``dtype``."""
    return np.dtype(_STORAGE[dtype])
