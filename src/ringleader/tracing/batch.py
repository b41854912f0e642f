"""``Batch``: some events of a rank, and what is known about it, as bounded bytes."""

from __future__ import annotations

import json
import zlib
from dataclasses import astuple, dataclass, field
from typing import Any

from ringleader.errors import ProtocolError
from ringleader.tracing.analysis.clock import Offset
from ringleader.tracing.analysis.events import Event
from ringleader.tracing.recorder import KINDS

MAX_EVENTS = 4096
MAX_BYTES = 1 << 20
MAX_JSON_BYTES = 4 << 20
MAX_LINKS = 4096
MAX_OFFSETS = 64
MAX_TEXT = 200
_LATEST_NS = 1 << 62
_FIELDS: tuple[tuple[type, ...], ...] = (
    (str, int, str, str, str, int, int),
    (str, int, int),
    (),
    (),
    (int,),
    (str,),
)
"""Types of the fields after begin and end, by kind."""


@dataclass(slots=True, kw_only=True)
class Batch:
    """What a rank sends to rank 0 from time to time."""

    machine: str
    link_kind: str = ""
    num_dropped: int = 0
    """Events that the rank has lost since it began."""
    is_last: bool = False
    offsets: list[Offset] = field(default_factory=list)
    links: dict[tuple[int, int], float] = field(default_factory=dict)
    events: list[Event] = field(default_factory=list)

    def encode(self) -> bytes:
        """Return the batch as bytes."""
        content = [
            self.machine[:MAX_TEXT],
            self.link_kind[:MAX_TEXT],
            self.num_dropped,
            self.is_last,
            [astuple(each) for each in self.offsets[:MAX_OFFSETS]],
            [[*ends, speed] for ends, speed in self.links.items()][:MAX_LINKS],
            [_row(each) for each in self.events],
        ]
        return zlib.compress(json.dumps(content).encode(), 1)

    @classmethod
    def decode(cls, data: bytes, source: int) -> Batch:
        """Read the batch of rank ``source``; ProtocolError if it is none."""
        try:
            return cls._decode(data)
        except (ValueError, TypeError, LookupError, zlib.error, RecursionError) as exc:
            text = f"sent a part of a trace that cannot be read: {exc}"
            raise ProtocolError(source, text) from exc

    @classmethod
    def _decode(cls, data: bytes) -> Batch:
        if len(data) > MAX_BYTES:
            raise ValueError(f"{len(data)} bytes; at most {MAX_BYTES}")
        unpacker = zlib.decompressobj()
        text = unpacker.decompress(data, MAX_JSON_BYTES)
        if not unpacker.eof:
            raise ValueError(f"more than {MAX_JSON_BYTES} bytes, or cut off")
        machine, link_kind, dropped, last, offsets, links, rows = json.loads(text)
        _check_length(offsets, MAX_OFFSETS)
        _check_length(links, MAX_LINKS)
        _check_length(rows, MAX_EVENTS)
        return cls(
            machine=_checked(machine, str),
            link_kind=_checked(link_kind, str),
            num_dropped=_checked(dropped, int),
            is_last=_checked(last, bool),
            offsets=[Offset(*(_whole(part) for part in each)) for each in offsets],
            links={
                (_checked(a, int), _checked(b, int)): _speed(speed)
                for a, b, speed in links
            },
            events=[_event(row) for row in rows],
        )


def _row(event: Event) -> list[Any]:
    begin_ns, end_ns, *rest = astuple(event)
    return [KINDS.index(type(event)), begin_ns, end_ns - begin_ns, *rest]


def _event(row: list[Any]) -> Event:
    kind, begin_ns, duration_ns, *rest = row
    kinds = _FIELDS[_checked(kind, int)]
    if len(rest) != len(kinds):
        raise ValueError(f"an event with {len(rest)} fields")
    begin_ns, duration_ns = _checked(begin_ns, int), _checked(duration_ns, int)
    values = [_checked(*each) for each in zip(rest, kinds, strict=True)]
    found: Event = KINDS[kind](begin_ns, begin_ns + duration_ns, *values)
    return found


def _check_length(values: object, most: int) -> None:
    if not isinstance(values, list) or len(values) > most:
        raise ValueError(f"not a list of at most {most}")


def _whole(value: object) -> int:
    if type(value) is not int or abs(value) > _LATEST_NS:
        raise ValueError(f"{value!r} is not a time")
    return value


def _checked(value: Any, kind: type) -> Any:  # noqa: ANN401 - of that type
    """Return ``value`` if it has this type and a size that makes sense."""
    if type(value) is not kind:
        raise ValueError(f"{str(value)[:50]!r} is not of type {kind.__name__}")
    if isinstance(value, str) and len(value) > MAX_TEXT:
        raise ValueError(f"a text of {len(value)} characters")
    if isinstance(value, int) and not 0 <= value <= _LATEST_NS:
        raise ValueError(f"{value} is out of range")
    return value


def _speed(value: object) -> float:
    if not isinstance(value, int | float) or not 0 < value < 1e15:
        raise ValueError(f"{value!r} is no speed of a link")
    return float(value)
