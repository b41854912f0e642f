"""BenchRank verifies and times the calls of collective libraries on one rank.

It is used by torch workers and MPI ranks, which differ only in their libraries. Each
timed batch starts with a barrier of the library, so that ranks begin together.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from itertools import repeat
from typing import NamedTuple, Protocol

import numpy as np

from ringleader.cli.bench.bench_plan import BenchCell, shard_items, total_items
from ringleader.cli.bench.check_pattern import (
    Array,
    first_wrong,
    result_parts,
    source_parts,
)
from ringleader.cli.bench.check_pattern import write as write_pattern
from ringleader.cli.json_socket import Message
from ringleader.errors import ConfigError, InternalError

_ALIGN_BYTES = 64  # a cache line, as torch aligns its own tensors


class Buffers(NamedTuple):
    """Tensors of one cell; for in-place operations both are the same."""

    source: Array
    result: Array


class CollectiveLibrary(Protocol):
    """Interface that BenchRank needs from a library."""

    def barrier(self) -> None:
        """Return once all ranks have called it."""

    def prepare(
        self, operation: str, buffers: Buffers, algorithm: str | None
    ) -> Callable[[], object]:
        """Return a function that runs ``operation`` on ``buffers`` once.

        Raises ConfigError if the library has no such algorithm.
        """


class BenchRank:
    """The libraries of one rank and the buffers they work on."""

    def __init__(
        self, rank: int, size: int, libraries: Mapping[str, CollectiveLibrary]
    ) -> None:
        self._rank = rank
        self._size = size
        self._libraries = libraries
        self._cell = BenchCell("all_reduce", 4)
        self._buffers = allocate(self._cell, size)

    def handle(self, task: Message) -> Message:
        """Perform one task of the parent and return the reply."""
        match task:
            case {"do": "prepare", "operation": str(name), "bytes": int(size_bytes)}:
                self._cell = BenchCell(name, size_bytes)
                self._buffers = allocate(self._cell, self._size)
                return {"ready": True}
            case {"do": "check", "engine": str(library), "algorithm": algorithm}:
                return self._check(library, _text(algorithm))
            case {
                "do": "batch",
                "engine": str(library),
                "algorithm": algorithm,
                "iterations": int(count),
            }:
                return self._batch(library, _text(algorithm), count)
            case _:
                raise ConfigError(f"bench worker: unknown task {task}")

    def _check(self, library: str, algorithm: str | None) -> Message:
        """Verify one call on known values, then zero the input against overflows."""
        operation = self._cell.operation
        source, result = self._buffers
        result.fill(-1)
        write_pattern(source, source_parts(operation, self._rank, self._size))
        try:
            self._call(library, algorithm)()
        except ConfigError as exc:
            return {"refused": str(exc)}
        wrong = first_wrong(result, result_parts(operation, self._rank, self._size))
        if wrong is not None:
            where = f"{library} {operation} of {self._cell.total_bytes} bytes"
            raise InternalError(f"wrong result: {where} on {self._size} ranks: {wrong}")
        source.fill(0)
        return {"exact": True}

    def _batch(self, library: str, algorithm: str | None, count: int) -> Message:
        call = self._call(library, algorithm)
        self._libraries[library].barrier()
        start_s = time.perf_counter()
        for _ in repeat(None, count):
            call()
        return {"seconds": time.perf_counter() - start_s}

    def _call(self, library: str, algorithm: str | None) -> Callable[[], object]:
        prepare = self._libraries[library].prepare
        return prepare(self._cell.operation, self._buffers, algorithm)


def allocate(cell: BenchCell, size: int) -> Buffers:
    """Allocate the tensors of ``cell`` and touch them, to avoid page faults later."""
    total = total_items(cell, size)
    shard = shard_items(cell, size)
    match cell.operation:
        case "all_gather":
            return Buffers(_aligned(shard), _aligned(total))
        case "reduce_scatter":
            return Buffers(_aligned(total), _aligned(shard))
        case "all_to_all":
            return Buffers(_aligned(total), _aligned(total))
        case _:
            in_place = _aligned(total)
            return Buffers(in_place, in_place)


def _aligned(items: int) -> Array:
    raw = np.empty(items * 4 + _ALIGN_BYTES, dtype=np.uint8)
    start = -raw.ctypes.data % _ALIGN_BYTES
    array: Array = raw[start : start + items * 4].view(np.float32)
    array.fill(0)
    return array


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None
