"""Encodes the values of a training state that are not plain tensors, without pickle.

MessagePack holds None, booleans, numbers, text, bytes, lists and dicts. Everything else
that states of optimizers, schedulers, samplers and random generators contain is a pair
of a tag and its content: tuples, sets, tensors, arrays, dtypes, and dicts whose keys
are not text. Other types are refused by name, because only code could restore them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import msgspec
import numpy as np
import torch
from torch import Tensor

from ringleader.errors import ConfigError

_TAG = "\x00"
"""Key of a tagged value: ``{_TAG: tag, "v": content}``. No user's key begins so."""

_MAX_DEPTH = 64

_DECODING_ERRORS = (
    msgspec.MsgspecError,
    AttributeError,
    LookupError,
    OverflowError,
    RuntimeError,
    TypeError,
)


def encode(value: object, *, is_sorted: bool = False) -> bytes:
    """Return the value as bytes; ConfigError names the type that cannot be stored.

    With ``is_sorted``, dicts that differ only in their order have equal bytes.
    """
    order: Literal["deterministic"] | None = "deterministic" if is_sorted else None
    return msgspec.msgpack.encode(_plain(value, "value", 0), order=order)


def decode(data: bytes | memoryview) -> Any:  # noqa: ANN401  # any value
    """Return what was encoded; ValueError if the bytes are anything else."""
    try:
        return _restored(msgspec.msgpack.decode(data), 0)
    except _DECODING_ERRORS as exc:
        raise ValueError(f"not an encoded value: {exc}"[:200]) from None


def _plain(value: object, where: str, depth: int) -> object:
    if depth > _MAX_DEPTH:
        raise ConfigError(f"{where}: nested deeper than {_MAX_DEPTH} levels")
    if value is None or isinstance(value, bool | str | bytes | float):
        return value
    if isinstance(value, int):
        return value if -(1 << 63) <= value < 1 << 63 else _tagged("int", str(value))
    if type(value) is list:
        return [_plain(v, f"{where}[{i}]", depth + 1) for i, v in enumerate(value)]
    if isinstance(value, dict):
        return _plain_dict(value, where, depth)
    return _plain_other(value, where, depth)


def _plain_dict(value: dict[Any, Any], where: str, depth: int) -> object:
    if all(isinstance(key, str) and not key.startswith(_TAG) for key in value):
        return {k: _plain(v, f"{where}[{k!r}]", depth + 1) for k, v in value.items()}
    pairs = [
        [_plain(k, where, depth + 1), _plain(v, f"{where}[{k!r}]", depth + 1)]
        for k, v in value.items()
    ]
    return _tagged("dict", pairs)


def _plain_other(value: object, where: str, depth: int) -> object:
    """Encode a value by its tag."""
    if isinstance(value, torch.Size):
        return _tagged("size", list(value))
    if isinstance(value, tuple | set | frozenset):
        parts = [_plain(v, f"{where}[{i}]", depth + 1) for i, v in enumerate(value)]
        if isinstance(value, tuple):
            return _tagged("tuple", parts)
        return _tagged("set", sorted(parts, key=msgspec.msgpack.encode))
    if isinstance(value, Tensor):
        return _tagged("tensor", _tensor_parts(value))
    if isinstance(value, np.ndarray | np.generic):
        return _plain_numpy(value, where)
    if isinstance(value, torch.dtype):
        return _tagged("dtype", str(value).removeprefix("torch."))
    raise ConfigError(
        f"{where} is a {type(value).__module__}.{type(value).__qualname__}, which "
        f"cannot be encoded without pickle; use numbers, text, tensors, or lists and "
        f"dicts of these"
    )


def _plain_numpy(value: np.ndarray[Any, Any] | np.generic, where: str) -> object:
    array = np.asarray(value)
    if array.dtype.hasobject:
        raise ConfigError(f"{where} is an array of objects, which needs pickle")
    parts = [array.dtype.str, list(array.shape), array.tobytes()]
    return _tagged("array" if isinstance(value, np.ndarray) else "scalar", parts)


def _tensor_parts(value: Tensor) -> list[object]:
    flat = value.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
    dtype = str(value.dtype).removeprefix("torch.")
    return [dtype, list(value.shape), flat.numpy().tobytes()]


def _tagged(tag: str, content: object) -> dict[str, object]:
    return {_TAG: tag, "v": content}


def _restored(value: Any, depth: int) -> Any:  # noqa: ANN401
    if depth > 2 * _MAX_DEPTH:
        raise ValueError("nested too deeply")
    if isinstance(value, list):
        return [_restored(v, depth + 1) for v in value]
    if not isinstance(value, dict):
        return value
    if _TAG not in value:
        return {k: _restored(v, depth + 1) for k, v in value.items()}
    restore = _RESTORERS[value[_TAG]]
    return restore(value["v"], depth)


def _restored_tensor(parts: list[Any], _: int) -> Tensor:
    dtype, shape, data = getattr(torch, parts[0]), parts[1], parts[2]
    if not isinstance(dtype, torch.dtype):
        raise ValueError(f"no dtype: {parts[0]!r}")
    if not data:
        return torch.empty(0, dtype=dtype).reshape(shape)
    return torch.frombuffer(bytearray(data), dtype=dtype).reshape(shape)


def _restored_array(parts: list[Any], _: int) -> np.ndarray[Any, Any]:
    dtype = np.dtype(parts[0])
    if dtype.hasobject:
        raise ValueError("an array of objects")
    return np.frombuffer(bytearray(parts[2]), dtype=dtype).reshape(parts[1])


def _restored_dtype(name: str, _: int) -> torch.dtype:
    dtype = getattr(torch, name)
    if not isinstance(dtype, torch.dtype):
        raise ValueError(f"no dtype: {name!r}")
    return dtype


_RESTORERS: dict[str, Callable[[Any, int], Any]] = {
    "int": lambda text, _: int(text),
    "dict": lambda pairs, depth: {
        _restored(k, depth + 1): _restored(v, depth + 1) for k, v in pairs
    },
    "tuple": lambda parts, depth: tuple(_restored(p, depth + 1) for p in parts),
    "set": lambda parts, depth: {_restored(p, depth + 1) for p in parts},
    "size": lambda sizes, _: torch.Size(sizes),
    "tensor": _restored_tensor,
    "array": _restored_array,
    "scalar": lambda parts, depth: _restored_array(parts, depth)[()],
    "dtype": _restored_dtype,
}
