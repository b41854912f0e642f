"""Calls as shared memory wants them: one short function per operation."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ringleader.engine import arrays, shared_memory
from ringleader.engine.arena import Arena, Finish
from ringleader.engine.reductions import Combine
from ringleader.groups.call import Call, some


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """What an operation needs besides its tensors."""

    header: bytes
    headers: dict[int, tuple[bytes, bytes]]
    combine: Combine | None
    finish: Finish | None


def _all_reduce(arena: Arena, call: Call, task: Task) -> None:
    combine = some(task.combine)
    if call.carrier is not None:
        dtype = arrays.storage_dtype(call.dtype)
        arena.relay.all_reduce_carried(
            task.header, call.carrier, call.count, dtype, combine, task.finish
        )
        return
    source, home = some(call.sources[0]), some(call.homes[0])
    shared_memory.all_reduce(arena, task.header, source, home, combine, task.finish)


def _reduce_scatter(arena: Arena, call: Call, task: Task) -> None:
    parts, home = [some(s) for s in call.sources], some(call.homes[arena.rank])
    shared_memory.reduce_scatter(
        arena, task.header, parts, home, some(task.combine), task.finish
    )


def _all_gather(arena: Arena, call: Call, task: Task) -> None:
    source = some(call.sources[arena.rank])
    shared_memory.all_gather(arena, task.header, source, [some(h) for h in call.homes])


def _broadcast(arena: Arena, call: Call, task: Task) -> None:
    root = some(call.root)
    tensor = call.sources[0] if arena.rank == root else call.homes[0]
    shared_memory.broadcast(arena, task.header, some(tensor), root)


def _reduce(arena: Arena, call: Call, task: Task) -> None:
    source, combine = some(call.sources[0]), some(task.combine)
    shared_memory.reduce(
        arena, task.header, source, call.homes[0], combine, some(call.root)
    )


def _gather(arena: Arena, call: Call, task: Task) -> None:
    root = some(call.root)
    outs = [some(h) for h in call.homes] if arena.rank == root else None
    shared_memory.gather(arena, task.header, some(call.sources[arena.rank]), outs, root)


def _scatter(arena: Arena, call: Call, task: Task) -> None:
    root = some(call.root)
    parts = [some(s) for s in call.sources] if arena.rank == root else None
    shared_memory.scatter(arena, task.header, parts, some(call.homes[arena.rank]), root)


def _all_to_all(arena: Arena, call: Call, task: Task) -> None:
    me, n = arena.rank, arena.size
    outs = [some(call.homes[p * n + me]) for p in range(n)]
    parts = [some(call.sources[me * n + p]) for p in range(n)]
    shared_memory.all_to_all(arena, task.headers, parts, outs)


RUN: dict[str, Callable[[Arena, Call, Task], None]] = {
    "all_reduce": _all_reduce,
    "reduce_scatter": _reduce_scatter,
    "all_gather": _all_gather,
    "broadcast": _broadcast,
    "reduce": _reduce,
    "gather": _gather,
    "scatter": _scatter,
    "all_to_all": _all_to_all,
}
"""Operation -> how the arena does it."""
