"""Ranks in real processes that are killed or stopped in the middle of everything.

Each world runs one operation in a tight loop, so that the fault lands in any phase of
it. Whatever happens, survivors raise a typed error in time, it names who is to blame,
and nothing stays behind.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest
import torch

from ringleader.errors import DeadlineExceeded, PeerLost
from ringleader.groups.group import Group
from ringleader.testing.processes import ForkServer, Rank, Ready, spawn_ranks

SIZE = 4
KILL_TIMEOUT_S = 90.0
"""Timeout of the group; a kill must be noticed long before: it is another error."""
LOST_WITHIN_S = 30.0
STOP_TIMEOUT_S = 10.0
"""More than a call takes on a busy machine, and than ranks need to tell each other for
whom they wait."""
SLACK_S = 30.0
SMALL, LARGE = 5_000, 400_000
"""float32 elements: one message or slot, and many segments."""

VICTIMS = [0, 2, SIZE - 1]
QUICK = {("tcp", 0), ("shm", 2)}
"""Transport and victim of the kills that ``make test`` tries."""


@dataclass(frozen=True)
class Case:
    """One operation in a loop."""

    step: str
    count: int = LARGE
    algorithm: str | None = None

    def __str__(self) -> str:
        return f"{self.step} {self.algorithm or ''} {self.count}"


CASES = {
    "tcp": [
        Case("all_reduce", SMALL, "exchange"),
        Case("all_reduce", LARGE, "exchange"),
        *(
            Case("all_reduce", LARGE, name)
            for name in ("direct", "ring", "doubling", "halving", "tree", "star")
        ),
        *(
            Case(step)
            for step in ("broadcast", "all_gather", "reduce_scatter", "all_to_all")
        ),
        Case("barrier"),
        Case("send_recv", SMALL),
        Case("send_recv"),
        Case("mixture"),
    ],
    "shm": [
        Case("all_reduce", 10),  # prepared
        Case("all_reduce", SMALL * 3, "shm"),  # one-shot
        Case("all_reduce", LARGE, "shm"),  # relay
        Case("all_reduce"),  # the same, prepared
        Case("all_reduce", LARGE, "ring"),  # the stream through shared memory
        *(
            Case(step)
            for step in ("broadcast", "all_gather", "reduce_scatter", "all_to_all")
        ),
        Case("gather_scatter"),
        Case("in_turn", 12),  # all of them prepared
        Case("barrier"),
        Case("send_recv"),
        Case("mixture"),
    ],
}


# -- what the ranks do -------------------------------------------------------------


def all_reduce(group: Group, case: Case) -> Callable[[], object]:
    tensor = torch.ones(case.count)
    if case.algorithm is None:
        return lambda: group.all_reduce(tensor)
    return lambda: group.all_reduce(tensor, algorithm=case.algorithm)


def broadcast(group: Group, case: Case) -> Callable[[], object]:
    tensor, turn = torch.ones(case.count), iter(range(10**9))
    return lambda: group.broadcast(tensor, src=next(turn) % group.size)


def all_gather(group: Group, case: Case) -> Callable[[], object]:
    out, part = torch.ones(case.count), torch.ones(case.count // group.size)
    return lambda: group.all_gather(out, part)


def reduce_scatter(group: Group, case: Case) -> Callable[[], object]:
    whole, out = torch.ones(case.count), torch.ones(case.count // group.size)
    return lambda: group.reduce_scatter(out, whole)


def all_to_all(group: Group, case: Case) -> Callable[[], object]:
    out, whole = torch.ones(case.count), torch.ones(case.count)
    return lambda: group.all_to_all(out, whole)


def gather_scatter(group: Group, case: Case) -> Callable[[], object]:
    whole, part = torch.ones(case.count), torch.ones(case.count // group.size)
    turn = iter(range(10**9))

    def step() -> None:
        root = next(turn) % group.size
        mine = whole if group.rank == root else None
        group.gather(mine, part, root)
        group.scatter(part, mine, root)

    return step


def barrier(group: Group, _: Case) -> Callable[[], object]:
    return group.barrier


def send_recv(group: Group, case: Case) -> Callable[[], object]:
    """Everybody with everybody, so that every survivor deals with the victim."""
    mine = torch.ones(case.count)
    peers = [p for p in range(group.size) if p != group.rank]
    boxes = [torch.ones(case.count) for _ in peers]

    def step() -> None:
        works = [group.send(mine, p, async_op=True) for p in peers]
        works += [
            group.recv(b, p, async_op=True) for p, b in zip(peers, boxes, strict=True)
        ]
        for work in works:
            work.wait()

    return step


def in_turn(group: Group, case: Case) -> Callable[[], object]:
    """One operation after another."""
    kinds = [broadcast, all_gather, reduce_scatter, all_to_all, gather_scatter]
    steps = [kind(group, case) for kind in kinds]

    def step() -> None:
        for each in steps:
            each()
        group.barrier()

    return step


def mixture(group: Group, case: Case) -> Callable[[], object]:
    """Several operations in flight, of several kinds."""
    large, small = torch.ones(case.count), torch.ones(7)
    out, part = torch.ones(case.count), torch.ones(case.count // group.size)

    def step() -> None:
        works = [
            group.all_reduce(large, async_op=True),
            group.all_gather(out, part, async_op=True),
            group.all_reduce(small, async_op=True),
        ]
        group.barrier()
        for work in works:
            work.wait()

    return step


STEPS: dict[str, Callable[[Group, Case], Callable[[], object]]] = {
    f.__name__: f
    for f in (
        all_reduce,
        broadcast,
        all_gather,
        reduce_scatter,
        all_to_all,
        gather_scatter,
        barrier,
        send_recv,
        in_turn,
        mixture,
    )
}


def loop(
    group: Group, ready: Ready, name: str, count: int, algorithm: str | None
) -> None:
    """Until it fails. Afterwards every other call must fail the same way at once.

    Only a recv that nobody answered in time leaves the group as it is.
    """
    case = Case(name, count, algorithm)
    step = STEPS[name](group, case)
    step()
    step()
    ready()
    try:
        while True:
            step()
    except Exception as first:
        if not (name == "send_recv" and isinstance(first, DeadlineExceeded)):
            check_that_it_stays_broken(group, first)
        raise


def check_that_it_stays_broken(group: Group, first: Exception) -> None:
    """Every later call raises the same error, and not that of its own deadline."""
    calls: list[Callable[[], object]] = [
        group.barrier,
        lambda: group.all_reduce(torch.ones(3)),
    ]
    for again in calls:
        with pytest.raises(type(first)) as caught:
            again()
        assert str(caught.value) == str(first)


# -- the tests ---------------------------------------------------------------------


def world(
    case: Case, transport: str, timeout_s: float, fork_server: ForkServer
) -> contextlib.AbstractContextManager[list[Rank]]:
    return spawn_ranks(
        SIZE,
        loop,
        case.step,
        case.count,
        case.algorithm,
        transport=transport,
        timeout_s=timeout_s,
        fork_server=fork_server,
    )


def run_a_moment(ranks: list[Rank], dice: random.Random) -> None:
    """Let the loop run, for an odd time so that no phase is always spared."""
    for rank in ranks:
        rank.wait_ready(within_s=90)
    time.sleep(dice.uniform(0, 0.03))


@pytest.mark.parametrize(
    ("transport", "victim"),
    [
        pytest.param(
            transport,
            victim,
            marks=() if (transport, victim) in QUICK else pytest.mark.slow,
        )
        for transport in ("tcp", "shm")
        for victim in VICTIMS
    ],
)
def test_a_killed_rank_is_named_by_every_survivor_long_before_its_deadline(
    transport: str, victim: int, fork_server: ForkServer
) -> None:
    dice = random.Random(f"kill {transport} {victim}")
    for case in CASES[transport]:
        with world(case, transport, KILL_TIMEOUT_S, fork_server) as ranks:
            run_a_moment(ranks, dice)
            killed_s = ranks[victim].kill()
            for rank in ranks[:victim] + ranks[victim + 1 :]:
                error = rank.error(within_s=KILL_TIMEOUT_S + SLACK_S)
                where = f"{case} at rank {rank.rank}"
                assert isinstance(error, PeerLost), f"{where}: {error!r}"
                assert error.peer == victim, f"{where} blames another: {error}"
                took_s = rank.ended_at_s - killed_s
                assert took_s < LOST_WITHIN_S, f"{where} took {took_s:.2f} s"


def stops(transport: str) -> Iterator[tuple[Case, int]]:
    """Each case with one victim, in turn; with all where one rank has a part apart.

    That any victim is noticed in any case is proved by killing.
    """
    for case, victim in zip(CASES[transport], itertools.cycle(VICTIMS), strict=False):
        is_rooted = case.algorithm in ("tree", "star")
        yield from ((case, each) for each in (VICTIMS if is_rooted else [victim]))


@pytest.mark.slow
@pytest.mark.parametrize("transport", ["tcp", "shm"])
def test_a_stopped_rank_is_named_by_every_survivor_in_time(
    transport: str, fork_server: ForkServer
) -> None:
    """The stops overlap: a world that waits for its deadline needs no processor."""
    dice = random.Random(f"stop {transport}")
    with contextlib.ExitStack() as stack:
        stopped: list[tuple[Case, int, list[Rank], float]] = []
        for case, victim in stops(transport):
            made = world(case, transport, STOP_TIMEOUT_S, fork_server)
            ranks = stack.enter_context(made)
            run_a_moment(ranks, dice)
            stopped.append((case, victim, ranks, ranks[victim].stop()))
        for case, victim, ranks, stopped_s in stopped:
            blamed = set()
            for rank in ranks[:victim] + ranks[victim + 1 :]:
                error = rank.error(within_s=90)
                where = f"{case} at rank {rank.rank}"
                assert isinstance(error, DeadlineExceeded), f"{where}: {error!r}"
                took_s = rank.ended_at_s - stopped_s
                assert took_s < STOP_TIMEOUT_S + SLACK_S, f"{where} took {took_s:.2f} s"
                blamed.add(error.peer)
            # Messages are between two: who sends the next one to a rank that waits for
            # the stopped rank can only name that one.
            assert blamed == {victim} or case.step == "send_recv", f"{case}: {blamed}"


# -- what survivors know -----------------------------------------------------------

UNFINISHED = [
    ("tcp", "ring", "sum"),
    ("tcp", "ring", "mean"),
    ("tcp", "direct", "sum"),
    ("tcp", "halving", "sum"),
    ("tcp", "tree", "sum"),
    ("tcp", "doubling", "max"),
    ("shm", "shm", "sum"),
    ("shm", "shm", "mean"),
    ("shm", "ring", "sum"),
    ("shm", "prepared", "sum"),  # in place, chosen by us: looked up from the second on
    ("shm", "prepared", "mean"),
]


def fail_and_check(
    group: Group, ready: Ready, algorithm: str, op: str
) -> tuple[int, int]:
    """(elements rightly called complete, all) by a rank whose all_reduce failed."""
    count = 3_000_000
    base = torch.arange(count) % 1000
    final = (base * group.size + sum(range(group.size))).double()
    if op == "mean":
        final /= group.size
    elif op == "max":
        final = (base + group.size - 1).double()
    source = (base + group.rank).float()
    kept, out = source.clone(), torch.empty(count)
    ready()
    while True:
        out.fill_(-1)
        try:
            if algorithm == "prepared":
                group.all_reduce(out.copy_(source), op)
            else:
                group.all_reduce(source, op, out=out, algorithm=algorithm)
        except DeadlineExceeded:
            break
    assert torch.equal(source, kept), "the input was written"
    progress = group.progress()
    assert f"all_reduce({count} x float32, {op}" in progress.call
    assert progress.count == count
    num_complete = 0
    for start, stop in progress.complete:
        assert 0 <= start < stop <= count
        assert torch.allclose(out[start:stop].double(), final[start:stop])
        num_complete += stop - start
    return num_complete, count


@pytest.mark.slow
def test_what_survivors_call_complete_holds_its_final_value(
    fork_server: ForkServer,
) -> None:
    dice = random.Random("complete")
    silent = list(UNFINISHED)
    for _ in range(100):  # until the stop came in the middle of each: half of them do
        if not silent:
            break
        with contextlib.ExitStack() as stack:
            worlds = []
            for case in silent:
                transport, algorithm, op = case
                made = spawn_ranks(
                    3,
                    fail_and_check,
                    algorithm,
                    op,
                    transport=transport,
                    timeout_s=0.5,
                    fork_server=fork_server,
                )
                ranks = stack.enter_context(made)
                run_a_moment(ranks, dice)
                ranks[1].stop()
                worlds.append((case, ranks))
            for case, ranks in worlds:
                results = [ranks[i].result(within_s=60) for i in (0, 2)]
                assert all(complete <= count for complete, count in results)
                if any(complete for complete, _ in results):
                    silent.remove(case)
    assert not silent


@pytest.mark.slow
def test_a_rank_that_wakes_up_too_late_learns_what_happened(
    fork_server: ForkServer,
) -> None:
    """Both worlds wait for their deadlines at the same time."""
    with contextlib.ExitStack() as stack:
        worlds = []
        for transport in ("tcp", "shm"):
            made = world(Case("all_reduce"), transport, STOP_TIMEOUT_S, fork_server)
            ranks = stack.enter_context(made)
            run_a_moment(ranks, random.Random(1))
            ranks[1].stop()
            worlds.append(ranks)
        for ranks in worlds:
            for rank in (ranks[0], ranks[2], ranks[3]):
                assert isinstance(rank.error(within_s=60), DeadlineExceeded)
            woken_s = ranks[1].cont()
            error = ranks[1].error(within_s=60)
            assert isinstance(error, DeadlineExceeded | PeerLost), repr(error)
            assert ranks[1].ended_at_s - woken_s < STOP_TIMEOUT_S + SLACK_S


@pytest.mark.parametrize("transport", ["tcp", "shm"])
def test_a_short_stop_is_not_an_error(transport: str, fork_server: ForkServer) -> None:
    with spawn_ranks(
        3, count_steps, 300, transport=transport, timeout_s=60, fork_server=fork_server
    ) as ranks:
        run_a_moment(ranks, random.Random(2))
        for rank in ranks:
            rank.stop()
            time.sleep(0.3)  # long enough for the others to ask what is going on
            rank.cont()
        assert [rank.result(within_s=90) for rank in ranks] == [300.0 * 3] * 3


def count_steps(group: Group, ready: Ready, steps: int) -> float:
    """The sum over ``steps`` all_reduces of ones."""
    total = torch.zeros(1000, dtype=torch.float64)
    for step in range(steps):
        if step == 10:
            ready()
        tensor = torch.ones(1000, dtype=torch.float64)
        group.all_reduce(tensor)
        total += tensor
    assert bool((total == total[0]).all())
    return float(total[0])


@pytest.mark.parametrize("transport", ["tcp", "shm"])
def test_two_ranks_killed_at_once_are_still_an_error_in_time(
    transport: str, fork_server: ForkServer
) -> None:
    with world(Case("all_reduce"), transport, KILL_TIMEOUT_S, fork_server) as ranks:
        run_a_moment(ranks, random.Random(3))
        killed_s = ranks[1].kill()
        ranks[2].kill()
        for rank in (ranks[0], ranks[3]):
            error = rank.error(within_s=KILL_TIMEOUT_S + SLACK_S)
            assert isinstance(error, PeerLost)
            assert error.peer in (1, 2)
            assert rank.ended_at_s - killed_s < LOST_WITHIN_S


@pytest.mark.parametrize("transport", ["tcp", "shm"])
def test_a_rank_that_ends_without_close_is_lost_to_the_others(
    transport: str, fork_server: ForkServer
) -> None:
    with spawn_ranks(
        3, leave_in_the_middle, transport=transport, fork_server=fork_server
    ) as ranks:
        for rank in ranks[1:]:
            error = rank.error(within_s=60)
            assert isinstance(error, PeerLost), repr(error)
            assert error.peer == 0


def leave_in_the_middle(group: Group, ready: Ready) -> None:
    """Rank 0 is gone from one moment to the next, the others notice."""
    tensor = torch.ones(10)
    group.all_reduce(tensor)
    ready()
    if group.rank == 0:
        os._exit(0)
    group.all_reduce(tensor)


@pytest.mark.parametrize("transport", ["tcp", "shm"])
def test_a_forked_process_cannot_use_the_group_of_its_parent(
    transport: str, fork_server: ForkServer
) -> None:
    with spawn_ranks(
        2, communicate_in_a_fork, transport=transport, fork_server=fork_server
    ) as ranks:
        results = [rank.result(within_s=60) for rank in ranks]
    for said, total in results:
        assert total == 4.0
        assert [line.split(" ", 1)[0] for line in said] == ["GroupAborted"] * 5
        assert all("a forked process has to form a group of its own" in s for s in said)


def communicate_in_a_fork(group: Group, _: Ready) -> tuple[list[str], float]:
    """What calls raise in a fork, and the sum of two calls in its parent."""
    tensor, other = torch.ones(10), 1 - group.rank
    group.all_reduce(tensor)
    pending = [group.recv(torch.ones(1), other, tag=1, async_op=True)]
    if group.rank == 0:  # the other calls it when the fork has ended
        pending.append(group.all_reduce(tensor, async_op=True))
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        calls = (
            pending[0].wait,
            pending[-1].wait,
            lambda: group.all_reduce(tensor),
            lambda: group.all_reduce(tensor, async_op=True).wait(),
            lambda: group.send(tensor, other),
        )
        for call in calls:
            try:
                call()
            except Exception as exc:  # noqa: BLE001 - the test looks at it
                os.write(writer, f"{type(exc).__name__} {exc}\n".encode())
        group.close()
        os._exit(0)
    os.close(writer)
    os.waitpid(pid, 0)
    with os.fdopen(reader) as lines:
        said = lines.read().splitlines()
    group.send(torch.ones(1), other, tag=1)
    if group.rank == 1:
        pending.append(group.all_reduce(tensor, async_op=True))
    for each in pending:
        each.wait()
    return said, float(tensor[0])
