"""The sideband of a step: what every member tells all others beside its gradient.

One entry per member, of equal length for all, exchanged by one all-gather. All members
read the same entries in the same order, so everything that follows from them (weights,
statistics, the ledger, the next shares) is equal everywhere. A result explains itself:
who contributed which quanta is in it, also for a member that was not in its view.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from ringleader.errors import ProtocolError
from ringleader.ids import NodeId
from ringleader.training.data.assignment import StepTable
from ringleader.training.data.balance import Flag, Report

_HEAD = struct.Struct("<52sddIQ")
_LENGTH = struct.Struct("<I")


@dataclass(frozen=True, slots=True)
class Entry:
    """The contribution of one member to a step."""

    node: NodeId
    quanta: tuple[int, ...]
    weight: float
    report: Report
    used: bytes
    """A bit for each parameter that got a gradient."""
    sums: Tensor = field(compare=False)
    """Weighted sums of the BatchNorm statistics."""
    counts: Tensor = field(compare=False)
    reads: bytes = b""
    """What its quanta read of streamed data."""
    digest: int = 0
    """64 bits that stand for a slice of its state before this step: ``state_watch``."""


@dataclass(frozen=True, slots=True)
class Totals:
    """What follows from the entries of all members, in ring order."""

    table: StepTable
    reports: dict[NodeId, Report]
    weight: float
    used: bytes
    sums: Tensor
    counts: Tensor
    reads: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class EntryLayout:
    """Lengths of the parts of an entry; equal on all members of a run."""

    num_quanta: int
    num_parameters: int
    num_sums: int
    num_counts: int
    max_reads: int = 0
    """The most bytes of ``reads``; 0: entries have none."""

    @property
    def num_bytes(self) -> int:
        """Bytes of one entry."""
        bitmaps = _bytes_for(self.num_quanta) + _bytes_for(self.num_parameters)
        numbers = 8 * (self.num_sums + self.num_counts)
        return _HEAD.size + bitmaps + numbers + self._reads_bytes

    @property
    def _reads_bytes(self) -> int:
        return _LENGTH.size + self.max_reads if self.max_reads else 0

    def encode(self, entry: Entry) -> Tensor:
        """Return the entry as bytes."""
        report = entry.report
        numbers = (entry.weight, report.quantum_s, report.flags, entry.digest)
        data = b"".join(
            [
                _HEAD.pack(entry.node.encode(), *numbers),
                bitmap(entry.quanta, self.num_quanta),
                entry.used,
                entry.sums.numpy().tobytes(),
                entry.counts.numpy().tobytes(),
                self._padded(entry.reads),
            ]
        )
        return torch.frombuffer(bytearray(data), dtype=torch.uint8)

    def decode(self, rank: int, entry: Tensor) -> Entry:
        """Return the entry of ``rank``; raises ProtocolError if it is invalid."""
        data = entry.numpy().tobytes()
        node, weight, quantum_s, flags, digest = _HEAD.unpack_from(data)
        is_valid = 0 <= weight < 1e300 and 0 <= quantum_s < 1e9
        if not is_valid or flags & ~sum(Flag) or not node.isascii():
            raise ProtocolError(rank, f"sent an invalid sideband: {data[:80]!r}")
        parts = self._parts(data)
        return Entry(
            node=NodeId(node.rstrip(b"\0").decode()),
            quanta=tuple(members_of(parts[0])),
            weight=weight,
            report=Report(quantum_s, Flag(flags)),
            used=parts[1],
            sums=_numbers(parts[2], torch.float64),
            counts=_numbers(parts[3], torch.int64),
            reads=_unpadded(rank, parts[4]),
            digest=digest,
        )

    def totals(self, entries: Sequence[Entry], num_quanta: int) -> Totals:
        """Return what follows from the entries, for a step of ``num_quanta``."""
        taken = {q for entry in entries for q in entry.quanta}
        used = bytearray(_bytes_for(self.num_parameters))
        sums = torch.zeros(self.num_sums, dtype=torch.float64)
        counts = torch.zeros(self.num_counts, dtype=torch.int64)
        for entry in entries:
            used = bytearray(a | b for a, b in zip(used, entry.used, strict=True))
            sums += entry.sums
            counts = torch.maximum(counts, entry.counts)
        return Totals(
            table=StepTable(
                {entry.node: entry.quanta for entry in entries},
                tuple(q for q in range(num_quanta) if q not in taken),
            ),
            reports={entry.node: entry.report for entry in entries},
            weight=sum(entry.weight for entry in entries),
            used=bytes(used),
            sums=sums,
            counts=counts,
            reads=tuple(entry.reads for entry in entries),
        )

    def _padded(self, reads: bytes) -> bytes:
        if not self.max_reads:
            return b""
        return (_LENGTH.pack(len(reads)) + reads).ljust(self._reads_bytes, b"\0")

    def _parts(self, data: bytes) -> list[bytes]:
        sizes = [_bytes_for(self.num_quanta), _bytes_for(self.num_parameters)]
        sizes += [8 * self.num_sums, 8 * self.num_counts, self._reads_bytes]
        parts, start = [], _HEAD.size
        for size in sizes:
            parts.append(data[start : start + size])
            start += size
        return parts


def bitmap(numbers: Iterable[int], size: int) -> bytes:
    """Return ``size`` bits, of which those with the given numbers are set."""
    bits = sum(1 << number for number in set(numbers))
    return bits.to_bytes(_bytes_for(size), "little")


def members_of(bits: bytes) -> list[int]:
    """Return the numbers of the bits that are set."""
    whole = int.from_bytes(bits, "little")
    return [i for i in range(whole.bit_length()) if whole >> i & 1]


def _bytes_for(bits: int) -> int:
    return (bits + 7) // 8


def _unpadded(rank: int, data: bytes) -> bytes:
    if not data:
        return b""
    (length,) = _LENGTH.unpack_from(data)
    if length > len(data) - _LENGTH.size:
        raise ProtocolError(rank, f"sent {length} bytes of readers' states")
    return data[_LENGTH.size : _LENGTH.size + length]


def _numbers(data: bytes, dtype: torch.dtype) -> Tensor:
    if not data:
        return torch.empty(0, dtype=dtype)
    return torch.frombuffer(bytearray(data), dtype=dtype)
