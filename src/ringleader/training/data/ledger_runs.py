"""Runs of a ledger, packed into bytes.

A long run of training has a thousand of them, with twenty numbers each. As Python
values they cost a newcomer half a second, and every comparison of states 60 ms.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np

from ringleader.errors import ConfigError
from ringleader.ids import NodeId
from ringleader.training.data.intervals import Interval, Intervals, num_positions

_HEAD: Final = np.dtype(
    [
        ("first_version", "<i8"),
        ("num_versions", "<i8"),
        ("epoch", "<i8"),
        ("stride", "<i8"),
        ("num_parts", "<i8"),
    ]
)
_PART: Final = np.dtype([("node", "S52"), ("num_spans", "<i8")])
_SPAN: Final = np.dtype([("begin", "<i8"), ("end", "<i8")])
_SUM: Final = np.dtype([("node", "S52"), ("samples", "<i8")])

MAX_NUMBER: Final = 1 << 62
"""Positions of streamed data end here; sums of two of them are still 64-bit numbers."""

Parts = tuple[tuple[NodeId, Intervals], ...]
"""Positions by member."""


class Entry(NamedTuple):
    """Positions of one epoch that one member computed for one version."""

    version: int
    node: NodeId
    epoch: int
    begin: int
    end: int


@dataclass(frozen=True, slots=True)
class Run:
    """Consecutive versions whose positions follow each other with the same table."""

    first_version: int
    num_versions: int
    epoch: int
    stride: int
    """Distance between the positions of one version and those of the next."""
    parts: Parts
    """Positions of the first version by member."""

    def entries(self) -> Iterator[Entry]:
        """Yield what each member computed, version by version."""
        for number in range(self.num_versions):
            version, distance = self.first_version + number, number * self.stride
            for node, intervals in self.parts:
                for begin, end in intervals:
                    span = begin + distance, end + distance
                    yield Entry(version, node, self.epoch, *span)

    def samples(self) -> Iterator[tuple[NodeId, int]]:
        """Yield how many samples each member computed."""
        for node, intervals in self.parts:
            yield node, num_positions(intervals) * self.num_versions


@dataclass(frozen=True, slots=True)
class PackedRuns:
    """Runs as three tables: one row per run, per member of a run, per interval."""

    heads: bytes = b""
    parts: bytes = b""
    spans: bytes = b""

    def __len__(self) -> int:
        return len(self.heads) // _HEAD.itemsize

    def __iter__(self) -> Iterator[Run]:
        parts = iter(np.frombuffer(self.parts, _PART).tolist())
        spans = iter(np.frombuffer(self.spans, _SPAN).tolist())
        for first, count, epoch, stride, num_parts in np.frombuffer(
            self.heads, _HEAD
        ).tolist():
            mine = []
            for _ in range(num_parts):
                node, num_spans = next(parts)
                intervals = tuple(Interval(*next(spans)) for _ in range(num_spans))
                mine.append((NodeId(node.decode()), intervals))
            yield Run(first, count, epoch, stride, tuple(mine))

    def with_last(self, run: Run) -> PackedRuns:
        """Return these runs and one more."""
        numbers = (run.first_version, run.num_versions, run.epoch, run.stride)
        heads = [(*numbers, len(run.parts))]
        parts = [(node.encode(), len(spans)) for node, spans in run.parts]
        spans = [tuple(each) for _, intervals in run.parts for each in intervals]
        return PackedRuns(
            self.heads + np.array(heads, _HEAD).tobytes(),
            self.parts + np.array(parts, _PART).tobytes(),
            self.spans + np.array(spans, _SPAN).tobytes(),
        )

    def split_first(self) -> tuple[PackedRuns, PackedRuns]:
        """Return the oldest run, and the others."""
        return self._split(1)

    def split_last(self) -> tuple[PackedRuns, PackedRuns]:
        """Return all runs but the newest, and that."""
        return self._split(len(self) - 1)

    def _split(self, count: int) -> tuple[PackedRuns, PackedRuns]:
        heads = np.frombuffer(self.heads, _HEAD)
        num_parts = int(heads["num_parts"][:count].sum())
        parts = np.frombuffer(self.parts, _PART)
        num_spans = int(parts["num_spans"][:num_parts].sum())
        at = count * _HEAD.itemsize, num_parts * _PART.itemsize
        first = self.heads[: at[0]], self.parts[: at[1]]
        rest = self.heads[at[0] :], self.parts[at[1] :]
        end = num_spans * _SPAN.itemsize
        return PackedRuns(*first, self.spans[:end]), PackedRuns(*rest, self.spans[end:])

    def check(self, max_runs: int) -> None:
        """Raise ConfigError or ValueError if these are not runs of a ledger."""
        heads = np.frombuffer(self.heads, _HEAD)
        if len(heads) > max_runs:
            raise ConfigError(f"a ledger of {len(heads)} runs; at most {max_runs}")
        parts = np.frombuffer(self.parts, _PART)
        spans = np.frombuffer(self.spans, _SPAN)
        _check_counts(heads["num_parts"], len(parts))
        _check_counts(parts["num_spans"], len(spans))
        for name in _HEAD.names or ():
            _check_range(heads[name])
        _check_names(parts["node"])
        is_first = np.zeros(len(spans), bool)
        begins = np.cumsum(parts["num_spans"]) - parts["num_spans"]
        is_first[begins[parts["num_spans"] > 0]] = True
        _check_spans(spans, is_first)


def pack_intervals(intervals: Intervals) -> bytes:
    """Return intervals as bytes."""
    return np.array([tuple(each) for each in intervals], _SPAN).tobytes()


def unpack_intervals(data: bytes) -> Intervals:
    """Return intervals that were packed. Raises ValueError if they are invalid."""
    spans = np.frombuffer(data, _SPAN)
    is_first = np.zeros(len(spans), bool)
    is_first[:1] = True
    _check_spans(spans, is_first)
    return tuple(Interval(*each) for each in spans.tolist())


def pack_samples(counts: Mapping[NodeId, int]) -> bytes:
    """Return the number of samples of each member as bytes, in order of the names."""
    rows = [(node.encode(), count) for node, count in sorted(counts.items())]
    return np.array(rows, _SUM).tobytes()


def unpack_samples(data: bytes) -> dict[NodeId, int]:
    """Return the samples of each member. Raises ValueError if they are invalid."""
    rows = np.frombuffer(data, _SUM)
    _check_names(rows["node"])
    found = {NodeId(node.decode()): count for node, count in rows.tolist()}
    if len(found) < len(rows) or min(found.values(), default=0) < 0:
        raise ValueError("samples of a member twice, or below 0")
    return found


def _check_counts(counts: np.ndarray[Any, Any], whole: int) -> None:
    """Raise ValueError unless the counts are the lengths of parts of a table."""
    is_sane = 0 <= counts.min(initial=0) <= counts.max(initial=0) <= whole
    if not is_sane or int(counts.sum()) != whole:
        raise ValueError(f"rows of a table that do not add up to {whole}")


def _check_range(numbers: np.ndarray[Any, Any]) -> None:
    if not 0 <= numbers.min(initial=0) <= numbers.max(initial=0) <= MAX_NUMBER:
        raise ValueError(f"a number outside of 0 to {MAX_NUMBER}")


def _check_names(names: np.ndarray[Any, Any]) -> None:
    letters = np.ascontiguousarray(names).view(np.uint8)
    if letters.max(initial=0) > 127 or (len(names) and not names.all()):
        raise ValueError("a member without a name of ASCII letters")


def _check_spans(
    spans: np.ndarray[Any, Any], is_first: np.ndarray[Any, np.dtype[np.bool_]]
) -> None:
    """Raise ValueError unless the intervals are sorted and apart, list by list."""
    begins, ends = spans["begin"], spans["end"]
    _check_range(begins)
    _check_range(ends)
    follows = is_first[1:] | (begins[1:] > ends[:-1])
    if not (begins < ends).all() or not follows.all():
        raise ValueError("intervals that are empty, overlap or are out of order")
