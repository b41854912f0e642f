"""What one rank does in a benchmark: hold buffers, prove an engine, time its calls.

The same station serves torch workers and MPI ranks; an engine is all that differs. Each
timed batch starts with the engine's own barrier, so that ranks begin together.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from itertools import repeat
from typing import NamedTuple, Protocol

import numpy as np

from ringleader.cli.bench.bench_plan import Cell, shard_items, total_items
from ringleader.cli.bench.check_pattern import (
    Array,
    first_wrong,
    result_parts,
    source_parts,
)
from ringleader.cli.bench.check_pattern import write as write_pattern
from ringleader.cli.json_socket import Message
from ringleader.errors import ConfigError, RingleaderError

_ALIGN_BYTES = 64  # a cache line, as torch aligns its own tensors


class Buffers(NamedTuple):
    """The tensors of one cell; for operations in place both are the same."""

    source: Array
    result: Array


class CollectiveLibrary(Protocol):
    """What a station needs of a contender."""

    def barrier(self) -> None:
        """Return once every rank has come here."""

    def prepare(
        self, operation: str, buffers: Buffers, algorithm: str | None
    ) -> Callable[[], object]:
        """One call of ``operation`` on ``buffers``, ready to be repeated.

        Raises ConfigError when this engine has no such algorithm.
        """


class BenchRank:
    """The engines of one rank and the buffers they work on."""

    def __init__(
        self, rank: int, size: int, engines: Mapping[str, CollectiveLibrary]
    ) -> None:
        self._rank = rank
        self._size = size
        self._engines = engines
        self._cell = Cell("all_reduce", 4)
        self._buffers = allocate(self._cell, size)

    def handle(self, task: Message) -> Message:
        """Carry out one task of the parent."""
        match task:
            case {"do": "prepare", "operation": str(name), "bytes": int(size_bytes)}:
                self._cell = Cell(name, size_bytes)
                self._buffers = allocate(self._cell, self._size)
                return {"ready": True}
            case {"do": "check", "engine": str(engine), "algorithm": algorithm}:
                return self._check(engine, _text(algorithm))
            case {
                "do": "batch",
                "engine": str(engine),
                "algorithm": algorithm,
                "iterations": int(count),
            }:
                return self._batch(engine, _text(algorithm), count)
            case _:
                raise ConfigError(f"bench worker: no such task {task}")

    def _check(self, engine: str, algorithm: str | None) -> Message:
        """Run once on known numbers; then leave zeros, which sums cannot overflow."""
        operation = self._cell.operation
        source, result = self._buffers
        result.fill(-1)
        write_pattern(source, source_parts(operation, self._rank, self._size))
        try:
            self._call(engine, algorithm)()
        except ConfigError as exc:
            return {"refused": str(exc)}
        wrong = first_wrong(result, result_parts(operation, self._rank, self._size))
        if wrong is not None:
            where = f"{engine} {operation} of {self._cell.total_bytes} bytes"
            raise RingleaderError(
                f"wrong result: {where} on {self._size} ranks: {wrong}"
            )
        source.fill(0)
        return {"exact": True}

    def _batch(self, engine: str, algorithm: str | None, count: int) -> Message:
        call = self._call(engine, algorithm)
        self._engines[engine].barrier()
        start_s = time.perf_counter()
        for _ in repeat(None, count):
            call()
        return {"seconds": time.perf_counter() - start_s}

    def _call(self, engine: str, algorithm: str | None) -> Callable[[], object]:
        prepare = self._engines[engine].prepare
        return prepare(self._cell.operation, self._buffers, algorithm)


def allocate(cell: Cell, size: int) -> Buffers:
    """The tensors of ``cell``, touched, so that no page is missing when it counts."""
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
