"""Small calls of every kind in shared memory: most of them run prepared."""

from __future__ import annotations

import random

import pytest
import torch
from torch import Tensor

from ringleader.groups.group import Group, handle_of
from ringleader.groups.prepared_calls import Kind
from ringleader.testing.processes import ForkServer, Ready, spawn_ranks

WITHIN_S = 300.0
NUM_CALLS = 200
DTYPES = {
    2: [torch.float32, torch.bfloat16, torch.bool],
    3: [torch.float64, torch.int8],
    4: [torch.complex64, torch.int64],
}
"""By the number of ranks: few at a time, so that most kinds of calls occur again."""
COUNTS = [5, 5, 5, 5, 256, 256, 0, 20_000]
"""Elements per rank: few, none, and so many that sums are relayed."""
OPERATIONS = [
    "all_reduce",
    "all_gather",
    "all_gather of a list",
    "reduce_scatter",
    "reduce_scatter of a list",
    "broadcast",
    "reduce",
    "gather",
    "scatter",
    "all_to_all",
    "all_to_all with splits",
    "barrier",
]


def values(call: int, rank: int, count: int, dtype: torch.dtype) -> Tensor:
    """What ``rank`` brings: exact in every dtype, also when eight of them are added."""
    return ((torch.arange(count) * 7 + rank * 3 + call) % 4).to(dtype)


def total(call: int, size: int, count: int, dtype: torch.dtype) -> Tensor:
    """The sum over all ranks; for bool, whether any is set."""
    kind = torch.int64 if dtype is torch.bool else dtype
    parts = [values(call, r, count, kind) for r in range(size)]
    return torch.stack(parts).sum(0).to(dtype)


class Memory:
    """Makes tensors at changing addresses, some of them not contiguous."""

    def __init__(self, rank: int) -> None:
        self._dice = random.Random(f"memory of rank {rank}")
        self._kept: list[Tensor] = []

    def hold(self, content: Tensor) -> Tensor:
        """A tensor with this content; ranks need not get the same layout."""
        count, step = len(content), self._dice.choice([1, 1, 1, 2])
        shift = self._dice.randrange(8)
        room = torch.zeros(shift + step * count + 1, dtype=content.dtype)
        self._kept = [*self._kept[-20:], room]
        tensor = room[shift : shift + step * count : step] if count else room[:0]
        return tensor.copy_(content)


def check(  # noqa: C901, PLR0912, PLR0915 - one case per operation
    group: Group, memory: Memory, call: int, dice: random.Random
) -> None:
    """Make one call, which the dice of all ranks choose alike, and compare values."""
    me, size, hold = group.rank, group.size, memory.hold
    name, dtype = dice.choice(OPERATIONS), dice.choice(DTYPES[size])
    count, root = dice.choice(COUNTS), dice.randrange(size)
    mine = values(call, me, count, dtype)
    whole = values(call, me, count * size, dtype)
    gathered = torch.cat([values(call, r, count, dtype) for r in range(size)])
    part = slice(me * count, (me + 1) * count)

    def empty(length: int) -> Tensor:
        return hold(torch.zeros(length, dtype=dtype))

    where = f"call {call}: {name} of {count} x {dtype}, root {root}, rank {me}"
    if name == "all_reduce":
        found = hold(mine)
        group.all_reduce(found)
        want = total(call, size, count, dtype)
    elif name == "all_gather":
        found, want = empty(count * size), gathered
        group.all_gather(found, hold(mine))
    elif name == "all_gather of a list":
        outs = [empty(count + r) for r in range(size)]
        group.all_gather(outs, hold(values(call, me, count + me, dtype)))
        found = torch.cat(outs)
        want = torch.cat([values(call, r, count + r, dtype) for r in range(size)])
    elif name == "reduce_scatter":
        found, want = empty(count), total(call, size, count * size, dtype)[part]
        group.reduce_scatter(found, hold(whole))
    elif name == "reduce_scatter of a list":
        found, want = empty(count), total(call, size, count * size, dtype)[part]
        inputs = [hold(p) for p in whole.view(size, count)]
        group.reduce_scatter(found, inputs)
    elif name == "broadcast":
        found, want = hold(mine), values(call, root, count, dtype)
        group.broadcast(found, root)
    elif name == "reduce":
        found = hold(mine)
        group.reduce(found, root)
        want = total(call, size, count, dtype) if me == root else mine
    elif name == "gather":
        found = empty(count * size)
        want = gathered if me == root else found.clone()
        group.gather(found if me == root else None, hold(mine), root)
    elif name == "scatter":
        found, want = empty(count), values(call, root, count * size, dtype)[part]
        group.scatter(found, hold(whole) if me == root else None, root)
    elif name == "all_to_all":
        found = empty(count * size)
        group.all_to_all(found, hold(whole))
        theirs = [values(call, r, count * size, dtype) for r in range(size)]
        want = torch.cat([t[part] for t in theirs])
    elif name == "all_to_all with splits":
        # Rank a sends count + a rows to rank b if they differ, none to itself.
        ins = [0 if r == me else count + me for r in range(size)]
        outs_rows = [0 if r == me else count + r for r in range(size)]
        found = empty(sum(outs_rows))
        given = hold(values(call, me, sum(ins), dtype))
        group.all_to_all(found, given, outs_rows, ins)
        want = torch.cat([sent(call, r, me, count, size, dtype) for r in range(size)])
    else:
        group.barrier()
        return
    assert torch.equal(found, want), where


def sent(
    call: int, source: int, to: int, count: int, size: int, dtype: torch.dtype
) -> Tensor:
    """The rows that ``source`` sends to rank ``to`` with splits."""
    lengths = [0 if r == source else count + source for r in range(size)]
    rows = values(call, source, sum(lengths), dtype)
    return torch.split(rows, lengths)[to]


def mixed_calls(group: Group, _ready: Ready, seed: int) -> set[str]:
    """Make many calls; return the operations that have run prepared."""
    torch.set_num_threads(1)
    dice, memory, seen = random.Random(seed), Memory(group.rank), set()
    prepared = handle_of(group).prepared
    run = prepared.run

    def watched(kind: Kind | None) -> bool:
        did_run = run(kind)
        if did_run and kind is not None:
            seen.add(kind[0][0])
        return did_run

    prepared.run = watched  # type: ignore[method-assign]
    for call in range(NUM_CALLS):
        check(group, memory, call, dice)
    return seen


@pytest.mark.parametrize("size", [2, 3, pytest.param(4, marks=pytest.mark.slow)])
def test_mixed_calls_have_the_right_values_whoever_runs_them_prepared(
    size: int, fork_server: ForkServer
) -> None:
    """Layouts differ between ranks, so one call is prepared on some of them only."""
    operations = {name.split()[0] for name in OPERATIONS}
    with spawn_ranks(
        size, mixed_calls, size, transport="shm", fork_server=fork_server
    ) as ranks:
        for rank in ranks:
            seen = rank.result(WITHIN_S)
            assert len(seen & operations) > len(operations) / 2
