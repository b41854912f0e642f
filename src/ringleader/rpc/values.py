"""Arguments and results as MessagePack, with tensors and references beside it.

None, booleans, numbers, text, bytes and dicts with text as keys are themselves. Every
other value is an array that begins with its tag: lists, tuples, sets, other dicts,
large integers, registered classes, and the position of a tensor or a reference in its
list. Other types are refused by name, because only code could restore them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import msgspec
from torch import Tensor

from ringleader.decoding import in_turn
from ringleader.errors import ConfigError
from ringleader.rpc import registry
from ringleader.rpc.rref import RRef

_LIST, _TUPLE, _SET, _DICT, _TENSOR, _REFERENCE, _OBJECT, _INT = range(8)
_LEAVES = frozenset({type(None), bool, str, bytes, float})
_SEQUENCES: dict[type[Any], int] = {
    list: _LIST,
    tuple: _TUPLE,
    set: _SET,
    frozenset: _SET,
}
_MAX_DEPTH = 64
_MAX_DIGITS = 4000
"""The most digits of an integer that is sent as text. Python parses up to 4300."""

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder()


class _Writer:
    """Makes one value plain and collects its tensors and references."""

    def __init__(self) -> None:
        self.tensors: list[Tensor] = []
        self.references: list[RRef] = []
        self._positions: dict[int, int] = {}

    def plain(self, value: object, depth: int = 0) -> object:
        kind = type(value)
        if kind in _LEAVES:
            return value
        if depth > _MAX_DEPTH:
            raise ConfigError(f"rpc: a value is nested deeper than {_MAX_DEPTH} levels")
        if kind in _SEQUENCES:
            parts: Any = value
            return [_SEQUENCES[kind], *[self.plain(v, depth + 1) for v in parts]]
        if isinstance(value, dict):
            return self._dict(value, depth)
        if isinstance(value, int):
            return self._int(int(value))
        if isinstance(value, Tensor):
            return [_TENSOR, self._position(value, self.tensors)]
        if isinstance(value, RRef):
            return [_REFERENCE, self._position(value, self.references)]
        return self._object(value, depth)

    def _int(self, value: int) -> object:
        if -(1 << 63) <= value < 1 << 63:
            return value
        text = hex(value)
        if len(text) > _MAX_DIGITS:
            raise ConfigError(f"rpc: an integer of {value.bit_length()} bits")
        return [_INT, text]

    def _dict(self, value: dict[Any, Any], depth: int) -> object:
        if all(type(key) is str for key in value):
            return {k: self.plain(v, depth + 1) for k, v in value.items()}
        return [
            _DICT,
            *(self.plain(part, depth + 1) for pair in value.items() for part in pair),
        ]

    def _position(self, value: object, among: list[Any]) -> int:
        """Add ``value`` once; a tensor that appears twice is sent once."""
        if id(value) not in self._positions:
            self._positions[id(value)] = len(among)
            among.append(value)
        return self._positions[id(value)]

    def _object(self, value: object, depth: int) -> object:
        kind = type(value)
        name = registry.type_name(kind)
        if name is not None:
            if isinstance(value, msgspec.Struct):
                names: Sequence[str] = value.__struct_fields__
            else:
                names = [f.name for f in dataclasses.fields(value)]  # type: ignore[arg-type]
            fields = {n: self.plain(getattr(value, n), depth + 1) for n in names}
            return [_OBJECT, name, fields]
        if isinstance(value, tuple):  # a named one, or a shape
            return self.plain(tuple(value), depth)
        if isinstance(value, bytes | bytearray | memoryview):
            return bytes(value)
        if isinstance(value, float):  # a subclass, as numpy.float64
            return float(value)
        if isinstance(value, str):
            return str.__str__(value)
        how = "send numbers, text, bytes, tensors, lists, tuples, sets, dicts, RRefs"
        if isinstance(value, msgspec.Struct) or dataclasses.is_dataclass(value):
            how = "decorate the class with @rpc.register, on both sides"
        full_name = f"{kind.__module__}.{kind.__qualname__}"
        raise ConfigError(f"rpc: a {full_name} cannot be sent without pickle; {how}")


def encode(value: object) -> tuple[bytes, list[Tensor], list[RRef]]:
    """Return the content, the tensors and the references of ``value``.

    Raises ConfigError for a type that cannot be sent.
    """
    writer = _Writer()
    try:
        content = _encoder.encode(writer.plain(value))
    except UnicodeEncodeError as exc:
        raise ConfigError(f"rpc: text that UTF-8 cannot express: {exc}") from None
    return content, writer.tensors, writer.references


def raw(content: bytes) -> msgspec.Raw:
    """Return encoded content as it is put into a message."""
    return msgspec.Raw(content)


def decode(
    content: bytes | memoryview | msgspec.Raw,
    tensors: Sequence[Tensor],
    references: Sequence[RRef],
) -> Any:  # noqa: ANN401  # any value
    """Return the value; ValueError says what is wrong with the content."""
    try:
        return _Reader(tensors, references).restored(_decoder.decode(content), 0)
    except (msgspec.MsgspecError, LookupError, TypeError, RecursionError) as exc:
        text = f"{type(exc).__name__}: {exc}"
        raise ValueError(f"not an encoded value: {text}"[:300]) from None


class _Reader:
    def __init__(self, tensors: Sequence[Tensor], references: Sequence[RRef]) -> None:
        self._lists: dict[Any, Sequence[object]] = {
            _TENSOR: tensors,
            _REFERENCE: references,
        }

    def restored(self, value: Any, depth: int) -> Any:  # noqa: ANN401
        kind = type(value)
        if kind is not list and kind is not dict:
            return value
        if depth > _MAX_DEPTH + 1:
            raise ValueError(f"nested deeper than {_MAX_DEPTH} levels")
        if kind is dict:
            return {k: self.restored(v, depth + 1) for k, v in value.items()}
        tag = value[0]
        if tag in self._lists:
            return self._item(value)
        if tag == _OBJECT:
            return self._object(value, depth)
        if tag == _INT:
            return _large_int(value)
        parts = [self.restored(v, depth + 1) for v in value[1:]]
        return _CONTAINERS[tag](parts)

    def _item(self, value: list[Any]) -> object:
        tag, position = value
        if type(position) is not int or position < 0:
            raise ValueError(f"no position: {position!r}"[:80])
        return self._lists[tag][position]

    def _object(self, value: list[Any], depth: int) -> object:
        _, name, fields = value
        kind = registry.find_type(name) if type(name) is str else None
        if kind is None:
            text = f"class {str(name)[:80]!r} is not registered here"
            raise ValueError(f"{text}; decorate it with @rpc.register")
        found = self.restored(fields, depth + 1)
        in_turn(kind, partial(msgspec.msgpack.Decoder, kind, dec_hook=_same))
        if not issubclass(kind, msgspec.Struct):
            return msgspec.convert(found, kind, dec_hook=_same)
        # Field by field: a Struct may be an array or have other names for its fields.
        types = {field.name: field.type for field in msgspec.structs.fields(kind)}
        return kind(
            **{
                n: msgspec.convert(v, types[n], dec_hook=_same)
                for n, v in dict(found).items()
            }
        )


def _large_int(value: list[Any]) -> int:
    _, text = value
    if type(text) is not str or len(text) > _MAX_DIGITS:
        raise ValueError("an invalid integer")
    return int(text, 16)


_CONTAINERS: dict[Any, Callable[[list[Any]], object]] = {
    _LIST: list,
    _TUPLE: tuple,
    _SET: set,
    _DICT: lambda parts: dict(zip(parts[::2], parts[1::2], strict=True)),
}


def _same(kind: type[Any], value: object) -> object:
    """Accept an instance of a class that msgspec does not know, such as a tensor."""
    if not isinstance(value, kind):
        raise TypeError(f"{type(value).__name__} instead of {kind.__name__}")
    return value
