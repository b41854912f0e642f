"""Messages between two ranks: tags, any source, small and large, beside collectives."""

from __future__ import annotations

import contextlib
import random
import resource
import sys
import threading
import time
from collections.abc import Callable

import pytest
import torch

from ringleader.errors import CallMismatch, ConfigError, DeadlineExceeded
from ringleader.groups.group import Group
from ringleader.groups.messages import MAX_EAGER_BYTES
from ringleader.testing.threaded_world import run_threads, run_world, world
from ringleader.wire.control_frames import EAGER_BYTES

TRANSPORTS = ["memory", "tcp", "shm"]
SMALL, EDGE, LARGE = 10, EAGER_BYTES // 4, 700_000
"""float32 elements: travels with its offer, just so, and by offer and acceptance."""
SIZES = [0, 1, SMALL, EDGE - 1, EDGE, EDGE + 1, LARGE]
WITHIN_S = 60.0
"""Limit for things that happen immediately, on a busy machine."""


def values(count: int, seed: int) -> torch.Tensor:
    return ((torch.arange(count) * 3 + seed * 101) % 997).float()


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_messages_of_every_size_arrive_as_they_were_sent(transport: str) -> None:
    """Also tensors without elements."""

    def body(group: Group) -> None:
        for seed, count in enumerate(SIZES):
            if group.rank == 0:
                group.send(values(count, seed), 1)
            else:
                box = torch.full((count,), -1.0)
                assert group.recv(box, 0).source == 0
                assert torch.equal(box, values(count, seed))

    run_world(2, body, transport)


@pytest.mark.parametrize("count", [0, SMALL, LARGE])
@pytest.mark.parametrize("transport", TRANSPORTS)
def test_tags_are_found_in_any_order(transport: str, count: int) -> None:
    tags = [5, -3, 0, 2**40, 17, 5]  # 5 comes twice: first sent, first received

    def body(group: Group) -> None:
        if group.rank == 0:
            works = [
                group.send(values(count, i), 1, tag=t, async_op=True)
                for i, t in enumerate(tags)
            ]
            for work in works:
                work.wait()
            return
        for tag in (17, 2**40, 0, -3):
            box = torch.full((count,), -1.0)
            group.recv(box, 0, tag=tag)
            assert torch.equal(box, values(count, tags.index(tag))), tag
        for seed in (0, 5):
            box = torch.full((count,), -1.0)
            group.recv(box, 0, tag=5)
            assert torch.equal(box, values(count, seed))

    run_world(2, body, transport)


@pytest.mark.parametrize("count", [0, SMALL, LARGE])
@pytest.mark.parametrize("transport", TRANSPORTS)
def test_any_source_takes_from_everybody_and_says_from_whom(
    transport: str, count: int
) -> None:
    size = 4

    def body(group: Group) -> None:
        if group.rank != 0:
            group.send(values(count, group.rank), 0, tag=1)
            return
        seen = set()
        for _ in range(size - 1):
            box = torch.full((count,), -1.0)
            source = group.recv(box, None, tag=1).source
            assert source is not None
            assert torch.equal(box, values(count, source))
            seen.add(source)
        assert seen == {1, 2, 3}

    run_world(size, body, transport)


@pytest.mark.parametrize("count", [SMALL, LARGE])
@pytest.mark.parametrize("transport", TRANSPORTS)
def test_both_directions_at_once_do_not_wait_for_each_other(
    transport: str, count: int
) -> None:
    """Everybody sends first and to everybody: the classic deadlock."""
    size = 3

    def body(group: Group) -> None:
        peers = [p for p in range(size) if p != group.rank]
        for step in range(5):
            sends = [
                group.send(values(count, group.rank + step), p, async_op=True)
                for p in peers
            ]
            for peer in peers:
                box = torch.full((count,), -1.0)
                group.recv(box, peer)
                assert torch.equal(box, values(count, peer + step))
            for work in sends:
                work.wait()

    run_world(size, body, transport)


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_sendrecv_passes_a_token_around_the_ring(transport: str) -> None:
    size = 4

    def body(group: Group) -> None:
        right, left = (group.rank + 1) % size, (group.rank - 1) % size
        token = values(LARGE, group.rank)
        for step in range(1, size + 1):
            inbox = torch.empty(LARGE)
            work = group.sendrecv(token, right, inbox, left)
            assert work.source == left
            token = inbox
            assert torch.equal(token, values(LARGE, (group.rank - step) % size))

    run_world(size, body, transport)


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_posted_recv_does_not_hold_up_collectives(transport: str) -> None:
    def body(group: Group) -> None:
        boxes = [torch.full((n,), -1.0) for n in (SMALL, LARGE)]
        works = []
        if group.rank == 1:
            works = [
                group.recv(box, 0, tag=i, async_op=True) for i, box in enumerate(boxes)
            ]
        for step in range(30):
            tensor = torch.full((5 if step % 3 else 200_000,), float(group.rank + step))
            group.all_reduce(tensor)
            assert bool((tensor == 2 * step + 1).all())
        if group.rank == 0:
            for i, box in enumerate(boxes):
                group.send(values(len(box), i), 1, tag=i)
        for i, work in enumerate(works):
            work.wait()
            assert torch.equal(boxes[i], values(len(boxes[i]), i))

    run_world(2, body, transport)


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_messages_move_while_other_threads_run_collectives(transport: str) -> None:
    """Two threads per rank: one reduces, one exchanges messages."""

    def reduce_a_lot(group: Group) -> None:
        for step in range(60):
            tensor = torch.full((30_000,), float(group.rank + step))
            group.all_reduce(tensor)
            assert bool((tensor == 2 * step + 1).all())

    def talk(group: Group) -> None:
        peer, dice = 1 - group.rank, random.Random(5)
        for step in range(60):
            count = dice.choice(SIZES[:-1])
            box = torch.full((count,), -1.0)
            group.sendrecv(values(count, step + group.rank), peer, box, peer, tag=step)
            assert torch.equal(box, values(count, step + peer))

    def body(group: Group) -> None:
        run_threads([lambda: reduce_a_lot(group), lambda: talk(group)])

    run_world(2, body, transport)


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_recv_that_nobody_answers_fails_alone(transport: str) -> None:
    with world(2, transport) as groups:
        started_s = time.monotonic()
        with pytest.raises(DeadlineExceeded, match="tag 9") as caught:
            groups[0].recv(torch.ones(3), 1, tag=9, timeout_s=0.2)
        assert caught.value.peer == 1
        assert 0.2 <= time.monotonic() - started_s < 30
        with pytest.raises(DeadlineExceeded, match="any rank"):
            groups[0].recv(torch.ones(3), None, tag=9, timeout_s=0.1)

        def body(group: Group) -> None:
            tensor = torch.ones(4)
            group.all_reduce(tensor)
            assert tensor[0] == 2
            if group.rank == 1:
                group.send(values(3, 1), 0, tag=9)  # late, but not lost
            else:
                box = torch.zeros(3)
                group.recv(box, 1, tag=9)
                assert torch.equal(box, values(3, 1))

        run_threads([lambda g=g: body(g) for g in groups])  # type: ignore[misc]


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("count", [SMALL, LARGE])
@pytest.mark.parametrize("wrong", ["count", "dtype"])
def test_a_message_that_does_not_fit_raises_on_both_ranks_naming_both(
    wrong: str, count: int, transport: str
) -> None:
    """Count and dtype are sent with the message and compared."""
    words = (f"{count} x float32", f"{count + 1} x" if wrong == "count" else "x int32")

    def body(group: Group) -> str:
        with contextlib.suppress(CallMismatch):
            if group.rank == 0:
                group.send(torch.ones(count), 1)  # a small one has left before
            elif wrong == "count":
                group.recv(torch.zeros(count + 1), 0)
            else:
                group.recv(torch.zeros(count, dtype=torch.int32), 0)
        with pytest.raises(CallMismatch) as caught:
            group.barrier()
        return str(caught.value)

    for text in run_world(2, body, transport):
        for word in words:
            assert word in text


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_small_messages_beyond_what_may_lie_around_still_arrive(transport: str) -> None:
    """Nobody receives for a while; the sender is slowed down, not refused."""
    count = EDGE
    num = 4 * MAX_EAGER_BYTES // (4 * count)
    is_counted = threading.Event()

    def body(group: Group) -> None:
        if group.rank == 0:
            works = [
                group.send(values(count, i), 1, tag=i, async_op=True)
                for i in range(num)
            ]
            group.barrier()
            finished = sum(w.done() for w in works)
            is_counted.set()
            assert finished <= 1 + MAX_EAGER_BYTES // (4 * count), (
                "stored without bound"
            )
            for work in works:
                work.wait()
            return
        group.barrier()
        assert is_counted.wait(WITHIN_S)  # whoever receives makes room for more
        order = list(range(num))
        random.Random(1).shuffle(order)
        for tag in order:
            box = torch.full((count,), -1.0)
            group.recv(box, 0, tag=tag)
            assert torch.equal(box, values(count, tag))

    run_world(2, body, transport)


@pytest.mark.slow
def test_thousands_of_messages_cost_no_memory_that_stays() -> None:
    """More than a sender may have on offer at once, in several rounds."""
    num, rounds = 4500, 3

    def body(group: Group) -> list[int]:
        peaks = []
        for _ in range(rounds):
            if group.rank == 0:
                works = [
                    group.send(torch.full((40,), float(i)), 1, async_op=True)
                    for i in range(num)
                ]
                for work in works:
                    work.wait()
            else:
                box = torch.zeros(40)
                for i in range(num):
                    group.recv(box, 0)
                    assert box[0] == i, "messages with one tag keep their order"
            group.barrier()
            peaks.append(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
        return peaks

    unit = 1 if sys.platform == "darwin" else 1024
    peaks = run_world(2, body, "tcp", within_s=300)[0]
    assert (peaks[-1] - peaks[0]) * unit < 16 << 20


def test_a_message_to_oneself_or_with_a_strange_tag_is_refused() -> None:
    with world(2) as groups:
        group = groups[0]
        calls: list[Callable[[], object]] = [
            lambda: group.send(torch.ones(1), 0),
            lambda: group.recv(torch.ones(1), 0),
            lambda: group.send(torch.ones(1), 2),
            lambda: group.send(torch.ones(1), 1, tag=2**70),
            lambda: group.recv(torch.ones(1), 1, tag="x"),  # type: ignore[arg-type]
        ]
        for call in calls:
            with pytest.raises(ConfigError):
                call()
        run_threads([lambda g=g: g.barrier() for g in groups])  # type: ignore[misc]
