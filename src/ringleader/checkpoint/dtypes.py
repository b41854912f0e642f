"""The names of torch's dtypes in safetensors files."""

from __future__ import annotations

import torch

from ringleader.errors import ConfigError

_NAMES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e5m2: "F8_E5M2",
    torch.complex64: "C64",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint64: "U64",
    torch.uint32: "U32",
    torch.uint16: "U16",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}
_DTYPES = {name: dtype for dtype, name in _NAMES.items()}


def name_of(dtype: torch.dtype) -> str:
    """Return the name in the file; ConfigError if the format has none."""
    if dtype not in _NAMES:
        raise ConfigError(f"a checkpoint cannot hold tensors of {dtype}")
    return _NAMES[dtype]


def dtype_of(name: str) -> torch.dtype:
    """Return the dtype of a name; ValueError if there is none."""
    if name not in _DTYPES:
        raise ValueError(f"no dtype: {name[:20]!r}")
    return _DTYPES[name]
