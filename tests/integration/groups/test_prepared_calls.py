"""Small calls of every kind: from the second of its kind on they run prepared."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

from ringleader.deadline import Deadline
from ringleader.errors import CallMismatch, DeadlineExceeded
from ringleader.groups.group import Group, handle_of
from ringleader.groups.job import Job
from ringleader.groups.prepared_calls import Key, Kind
from ringleader.groups.runner import Runner
from ringleader.groups.tensors import Tensors
from ringleader.groups.work import Work
from ringleader.testing.processes import ForkServer, Ready, spawn_ranks
from ringleader.testing.threaded_world import run_threads, world

WITHIN_S = 300.0
NUM_CALLS = 100
SMALL_BYTES = 16 << 10
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
        self.dice = random.Random(f"memory of rank {rank}")
        self._kept: list[Tensor] = []

    def hold(self, content: Tensor) -> Tensor:
        """A tensor with this content; ranks need not get the same layout."""
        count, step = len(content), self.dice.choice([1, 1, 1, 2])
        shift = self.dice.randrange(8)
        room = torch.zeros(shift + step * count + 1, dtype=content.dtype)
        self._kept = [*self._kept[-20:], room]
        tensor = room[shift : shift + step * count : step] if count else room[:0]
        return tensor.copy_(content)


def check(group: Group, memory: Memory, call: int, dice: random.Random) -> None:
    """Make one call, which the dice of all ranks choose alike, and compare values."""
    me, size, hold = group.rank, group.size, memory.hold
    name, dtype = OPERATIONS[call % len(OPERATIONS)], dice.choice(DTYPES[size])
    count, root = dice.choice(COUNTS), dice.randrange(size)
    mine = values(call, me, count, dtype)
    whole = values(call, me, count * size, dtype)
    gathered = torch.cat([values(call, r, count, dtype) for r in range(size)])
    part = slice(me * count, (me + 1) * count)

    how: dict[str, Any] = {"async_op": memory.dice.choice([True, False])}

    def empty(length: int) -> Tensor:
        return hold(torch.zeros(length, dtype=dtype))

    where = f"call {call}: {name} of {count} x {dtype}, root {root}, rank {me}"
    if name == "all_reduce":
        found = hold(mine)
        group.all_reduce(found, **how).wait()
        want = total(call, size, count, dtype)
    elif name == "all_gather":
        found, want = empty(count * size), gathered
        group.all_gather(found, hold(mine), **how).wait()
    elif name == "all_gather of a list":
        outs = [empty(count + r) for r in range(size)]
        group.all_gather(outs, hold(values(call, me, count + me, dtype)), **how).wait()
        found = torch.cat(outs)
        want = torch.cat([values(call, r, count + r, dtype) for r in range(size)])
    elif name == "reduce_scatter":
        found, want = empty(count), total(call, size, count * size, dtype)[part]
        group.reduce_scatter(found, hold(whole), **how).wait()
    elif name == "reduce_scatter of a list":
        found, want = empty(count), total(call, size, count * size, dtype)[part]
        inputs = [hold(p) for p in whole.view(size, count)]
        group.reduce_scatter(found, inputs, **how).wait()
    elif name == "broadcast":
        found, want = hold(mine), values(call, root, count, dtype)
        group.broadcast(found, root, **how).wait()
    elif name == "reduce":
        found = hold(mine)
        group.reduce(found, root, **how).wait()
        want = total(call, size, count, dtype) if me == root else mine
    elif name == "gather":
        found = empty(count * size)
        want = gathered if me == root else found.clone()
        group.gather(found if me == root else None, hold(mine), root, **how).wait()
    elif name == "scatter":
        found, want = empty(count), values(call, root, count * size, dtype)[part]
        group.scatter(found, hold(whole) if me == root else None, root, **how).wait()
    elif name == "all_to_all":
        found = empty(count * size)
        group.all_to_all(found, hold(whole), **how).wait()
        theirs = [values(call, r, count * size, dtype) for r in range(size)]
        want = torch.cat([t[part] for t in theirs])
    elif name == "all_to_all with splits":
        # Rank a sends count + a rows to rank b if they differ, none to itself.
        ins = [0 if r == me else count + me for r in range(size)]
        outs_rows = [0 if r == me else count + r for r in range(size)]
        found = empty(sum(outs_rows))
        given = hold(values(call, me, sum(ins), dtype))
        group.all_to_all(found, given, outs_rows, ins, **how).wait()
        want = torch.cat([sent(call, r, me, count, size, dtype) for r in range(size)])
    else:
        group.barrier(**how).wait()
        return
    assert torch.equal(found, want), where


def sent(
    call: int, source: int, to: int, count: int, size: int, dtype: torch.dtype
) -> Tensor:
    """The rows that ``source`` sends to rank ``to`` with splits."""
    lengths = [0 if r == source else count + source for r in range(size)]
    rows = values(call, source, sum(lengths), dtype)
    return torch.split(rows, lengths)[to]


class Watch:
    """Checks which calls of a group run prepared: all that can from the second on."""

    def __init__(self, group: Group, *, is_strict: bool = True) -> None:
        self.operations: set[str] = set()
        """The operations that have run prepared."""
        self._is_strict = is_strict
        self._prepared = handle_of(group).prepared
        self._run, self._known = self._prepared.run, set[Key]()
        self._prepared.run = self.run  # type: ignore[method-assign]

    def run(
        self, kind: Kind | None, async_op: bool, *given: Tensors | None
    ) -> Work | None:
        work = self._run(kind, async_op, *given)
        lists = [[x] if isinstance(x, Tensor) else x or () for x in given]
        flat = [tensor for tensors in lists for tensor in tensors]
        is_plain = all(t.is_contiguous() and t.numel() for t in flat)
        assert (kind is not None) == is_plain, flat
        if kind and self._is_strict and self._must_be_prepared(kind[0], flat):
            assert (work is not None) == (kind[0] in self._known), kind
            self._known.add(kind[0])
        if kind is not None and work is not None:
            self.operations.add(str(kind[0][0]))
        return work

    def _must_be_prepared(self, key: Key, tensors: Sequence[Tensor]) -> bool:
        """Small calls, and relayed all_reduces; of other large ones only some are."""
        return key[0] == "all_reduce" or sum(t.nbytes for t in tensors) <= SMALL_BYTES


def mixed_calls(
    group: Group, _ready: Ready, seed: int, is_strict: bool = True
) -> set[str]:
    """Make many calls, each twice; return the operations that have run prepared."""
    torch.set_num_threads(1)
    dice, memory = random.Random(seed), Memory(group.rank)
    watch = Watch(group, is_strict=is_strict)
    for call in range(NUM_CALLS):
        before = dice.getstate()
        check(group, memory, call, dice)
        dice.setstate(before)
        check(group, memory, call, dice)
    return watch.operations


@pytest.mark.parametrize("size", [2, 3, pytest.param(4, marks=pytest.mark.slow)])
def test_mixed_calls_have_the_right_values_whoever_runs_them_prepared(
    size: int, fork_server: ForkServer
) -> None:
    """Layouts differ between ranks, so one call is prepared on some of them only.

    So does whether a rank waits for its call or starts it and waits later.
    """
    operations = {name.split()[0] for name in OPERATIONS}
    with spawn_ranks(
        size, mixed_calls, size, transport="shm", fork_server=fork_server
    ) as ranks:
        for rank in ranks:
            assert rank.result(WITHIN_S) == operations


@pytest.mark.parametrize("size", [2, 3, pytest.param(4, marks=pytest.mark.slow)])
def test_mixed_calls_over_tcp_have_the_right_values(
    size: int, fork_server: ForkServer
) -> None:
    """Between two ranks all operations run prepared; among more, some forward."""
    operations = {name.split()[0] for name in OPERATIONS}
    with spawn_ranks(
        size, mixed_calls, size, False, transport="tcp", fork_server=fork_server
    ) as ranks:
        for rank in ranks:
            found = rank.result(WITHIN_S)
            assert found == operations if size == 2 else found <= operations


def async_calls(group: Group, _ready: Ready) -> None:
    """Start many calls, of which most are prepared, before waiting for any."""
    torch.set_num_threads(1)
    watch = Watch(group, is_strict=False)
    for round_ in range(20):
        sums = [torch.full((n,), float(group.rank + n)) for n in (1, 7, 300)]
        wholes = [torch.zeros(n * group.size) for n in (1, 7, 300)]
        works: list[Work] = []
        for tensor, whole in zip(sums, wholes, strict=True):
            works.append(group.all_reduce(tensor, async_op=True))
            # The memory of this input belongs to nobody else afterwards.
            mine = torch.full((tensor.numel(),), float(group.rank + round_))
            works.append(group.all_gather(whole, mine, async_op=True))
            del mine
        late = torch.tensor([1.0 + group.rank])
        group.all_reduce(late)  # after those that are queued
        for work in works[::-1]:
            work.wait()
        ranks = range(group.size)
        assert late.item() == sum(1.0 + r for r in ranks)
        for tensor, whole in zip(sums, wholes, strict=True):
            count = tensor.numel()
            assert tensor.eq(sum(r + count for r in ranks)).all()
            want = [torch.full((count,), float(r + round_)) for r in ranks]
            assert torch.equal(whole, torch.cat(want))
    assert "all_reduce" in watch.operations


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_prepared_calls_that_are_queued_run_in_order_on_memory_that_is_kept(
    transport: str, fork_server: ForkServer
) -> None:
    with spawn_ranks(
        2, async_calls, transport=transport, fork_server=fork_server
    ) as ranks:
        for rank in ranks:
            rank.result(WITHIN_S)


def long_calls(group: Group, _ready: Ready) -> None:
    """All_gather and reduce_scatter of more than a slot, at changing addresses."""
    count, me, size, kept = 200_001, group.rank, group.size, []
    part = slice(me * count, (me + 1) * count)
    for call in range(5):
        how: dict[str, Any] = {"async_op": (call + me) % 3 == 0}
        found, mine = torch.empty(size * count), values(call, me, count, torch.float32)
        if call % 2:  # in place
            mine = found[part].copy_(mine)
        group.all_gather(found, mine, **how).wait()
        parts = [values(call, r, count, torch.float32) for r in range(size)]
        assert torch.equal(found, torch.cat(parts)), f"all_gather {call}"
        out, whole = torch.empty(count), values(call, me, size * count, torch.float32)
        group.reduce_scatter(out, whole, "mean", **how).wait()
        wanted = total(call, size, size * count, torch.float32)[part] / size
        assert torch.equal(out, wanted), f"reduce_scatter {call}"
        kept += [found, out]
    prepared = handle_of(group).prepared.kept
    assert {key[0] for key, form in prepared.items() if form is not None} >= {
        "all_gather",
        "reduce_scatter",
    }


def test_calls_of_more_than_a_slot_run_prepared(fork_server: ForkServer) -> None:
    with spawn_ranks(
        2, long_calls, transport="shm", timeout_s=WITHIN_S, fork_server=fork_server
    ) as ranks:
        for rank in ranks:
            rank.result(within_s=WITHIN_S)


def test_a_queued_call_keeps_memory_that_its_caller_has_given_up() -> None:
    def gather(group: Group) -> list[Tensor]:
        outs = [torch.zeros(4) for _ in range(2)]
        group.all_gather(outs, torch.full((4,), float(group.rank)))
        return outs

    with world(2, "shm") as groups:
        run_threads([lambda g=g: gather(g) for g in groups])  # type: ignore[misc]
        outs = [torch.zeros(4) for _ in range(2)]
        kept = [StorageWeakRef(out.untyped_storage()) for out in outs]  # type: ignore[no-untyped-call]
        work = groups[0].all_gather(outs, torch.ones(4), async_op=True)
        outs[0].data = torch.zeros(4)
        outs.clear()
        assert not any(memory.expired() for memory in kept)  # type: ignore[no-untyped-call]
        assert gather(groups[1])[0].tolist() == [1.0] * 4
        work.wait()


class LateLock:
    """A lock that another thread had just before: it has begun an operation there."""

    def __init__(self, runner: Runner, begun: Job) -> None:
        self._runner, self._begun = runner, begun
        self._lock = runner.lock

    def acquire(self, *args: bool) -> bool:
        self._runner._queue.append(self._begun)
        return self._lock.acquire(*args)

    def release(self) -> None:
        self._lock.release()


def test_a_call_does_not_overtake_one_that_another_thread_has_just_begun() -> None:
    ran: list[str] = []
    with world(2, "shm") as groups:
        runner = handle_of(groups[0]).runner
        begun = Job(lambda _: None, Deadline.after(WITHIN_S), Work(), nests=False)
        lock = runner.lock
        runner.lock = LateLock(runner, begun)  # type: ignore[assignment]
        assert not runner.run_prepared(lambda _: ran.append("now"), ())
        runner._queue.clear()
        end = partial(ran.append, "end")
        start = partial(ran.append, "begun")
        assert runner.start_prepared(start, (), end) is None
        runner._queue.clear()
        runner.lock = lock
    assert not ran


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_groups_may_be_used_in_different_orders_by_calls_that_are_not_waited_for(
    transport: str,
) -> None:
    """A small call begins in its caller, who must not wait there for a peer."""

    def live(both: tuple[Group, Group]) -> None:
        order = both if both[0].rank == 0 else both[::-1]
        for turn in range(20):
            tensors = [torch.full((3,), 1.0 + turn) for _ in order]
            works = [
                group.all_reduce(tensor, async_op=True)
                for group, tensor in zip(order, tensors, strict=True)
            ]
            for work in works:
                work.wait()
            assert all(t.tolist() == [2.0 + 2 * turn] * 3 for t in tensors)

    with world(2, transport) as first, world(2, transport) as second:
        pairs = list(zip(first, second, strict=True))
        run_threads([lambda p=p: live(p) for p in pairs])  # type: ignore[misc]


OPERATIONS_OF_ONE: dict[str, Callable[..., Work]] = {
    "all_reduce": lambda group, **how: group.all_reduce(torch.ones(3), **how),
    "broadcast": lambda group, **how: group.broadcast(torch.ones(3), 1, **how),
    "all_to_all": lambda group, **how: group.all_to_all(
        torch.ones(4), torch.ones(4), **how
    ),
    "barrier": lambda group, **how: group.barrier(**how),
}


@pytest.mark.parametrize("transport", ["shm", "tcp"])
@pytest.mark.parametrize("name", OPERATIONS_OF_ONE)
def test_a_peer_may_come_to_a_call_long_after_it_was_started(
    name: str, transport: str
) -> None:
    """It comes once the caller has gone on and told it to; other calls queue up."""
    call, told = OPERATIONS_OF_ONE[name], threading.Event()

    def first(group: Group) -> None:
        call(group)
        call(group)
        works = [call(group, async_op=True) for _ in range(6)]
        told.set()
        call(group)  # after those that have begun
        assert all(work.done() for work in works)

    def second(group: Group) -> None:
        call(group)
        call(group)
        assert told.wait(WITHIN_S)
        for _ in range(7):
            call(group)

    with world(2, transport) as groups:
        run_threads([lambda: first(groups[0]), lambda: second(groups[1])])


def test_a_call_that_fails_as_it_begins_raises_where_it_is_waited_for() -> None:
    def live(group: Group) -> str:
        for count in (3, 4):
            group.all_reduce(torch.ones(count))
        work = group.all_reduce(torch.ones(3 + group.rank), async_op=True)
        with pytest.raises(CallMismatch) as caught:
            work.wait()
        return str(caught.value)

    with world(2, "shm") as groups:
        texts = run_threads([lambda g=g: live(g) for g in groups])  # type: ignore[misc]
    assert all("all_reduce" in text for text in texts)


def late_call(group: Group, ready: Ready) -> str:
    """Start a prepared call that rank 1 does not make, with a short time limit."""
    tensor = torch.ones(4)
    for _ in range(3):
        group.all_reduce(tensor, async_op=True).wait()
    ready()
    if group.rank == 1:
        with pytest.raises(DeadlineExceeded):
            # It fails because rank 0 says so, long before its own limit.
            group.recv(tensor, 0, timeout_s=WITHIN_S)
        return ""
    group.timeout_s = 0.5
    work = group.all_reduce(tensor, async_op=True)
    group.timeout_s = WITHIN_S  # of later calls
    with pytest.raises(DeadlineExceeded) as caught:
        work.wait()
    with pytest.raises(DeadlineExceeded):
        group.barrier()
    return str(caught.value)


def test_a_prepared_call_that_is_queued_keeps_the_time_limit_it_was_given(
    fork_server: ForkServer,
) -> None:
    with spawn_ranks(2, late_call, transport="shm", fork_server=fork_server) as ranks:
        for rank in ranks:
            rank.wait_ready(WITHIN_S)
        text = ranks[0].result(WITHIN_S)
        ranks[1].result(WITHIN_S)
    assert "0.5 s" in text
    assert "all_reduce" in text
