"""Rank 0 of a star holds little, however much others send to a rank that does not read.

A packet is forwarded before the next is read, so a stream holds its windows and a few
packets (docs/data-path.md#limits).
"""

from __future__ import annotations

import os
import time
from contextlib import suppress

import pytest
import torch

from ringleader.errors import PeerError
from ringleader.groups.group import Group, handle_of
from ringleader.testing.link_driver import MAX_BUFFERED_BYTES
from ringleader.testing.processes import ForkServer, Ready, spawn_ranks
from ringleader.transport.link import Link

WITHIN_S = 240.0
MAX_HELD_BYTES = 8 << 20
"""Between two workers: two windows of 1 MiB, packets of 256 KiB, socket buffers."""


def rss_bytes() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def fill(link: Link, until_s: float) -> int:
    """Send zeros until the link has taken nothing for a second."""
    data, taken = memoryview(bytes(1 << 20)), 0
    moved_at_s = time.monotonic()
    while time.monotonic() < moved_at_s + 1.0 < until_s:
        sent = link.try_send(data)
        taken += sent
        assert taken < MAX_BUFFERED_BYTES
        if sent:
            moved_at_s = time.monotonic()
        else:
            time.sleep(0.01)
    return taken


def flood(group: Group, ready: Ready) -> int:
    """Rank 1 floods rank 2, which never reads; rank 0 returns how much it has grown.

    Rank 1 stays until rank 0 has its word: whoever leaves with a full stream cancels.
    """
    group.all_reduce(torch.ones(1 << 20))  # buffers that stay
    before = rss_bytes()
    group.barrier()
    result = 0
    if group.rank == 1:
        link = handle_of(group).mesh.bulk[2]
        result = fill(link, time.monotonic() + WITHIN_S / 2)
    done = torch.zeros(1)
    if group.rank == 0:
        group.recv(done, 1)
        result = rss_bytes() - before
        group.send(done, 2)
        group.send(done, 1)
    elif group.rank == 1:
        group.send(done, 0)
        with suppress(PeerError):  # rank 0 has got it, and may have left
            group.recv(done, 0)
    else:
        group.recv(done, 0)  # by the control stream; its link to rank 1 stays unread
    return result


def test_a_rank_that_does_not_read_stops_its_sender(fork_server: ForkServer) -> None:
    """ZF-17: the root's memory does not grow with what is sent through it."""
    with spawn_ranks(
        3, flood, transport="grpc", timeout_s=WITHIN_S, fork_server=fork_server
    ) as ranks:
        taken, grown = ranks[1].result(WITHIN_S), ranks[0].result(WITHIN_S)
    assert 0 < taken < MAX_HELD_BYTES
    assert grown < 2 * MAX_HELD_BYTES


def broadcast_large(group: Group, ready: Ready, num_bytes: int) -> int:
    tensor = torch.ones(num_bytes // 4)
    group.barrier()
    before = rss_bytes()
    ready()
    try:
        group.broadcast(tensor, 0, algorithm="star", timeout_s=4.0)
    except PeerError:
        if group.rank == 0:
            return rss_bytes() - before
        raise
    raise AssertionError("a rank was stopped, but the broadcast ended")


@pytest.mark.slow
def test_a_stopped_worker_does_not_fill_the_root(fork_server: ForkServer) -> None:
    """256 MB to two workers, one of which is stopped: bounded, and it is named."""
    with spawn_ranks(
        3,
        broadcast_large,
        256_000_000,
        transport="grpc",
        timeout_s=WITHIN_S,
        fork_server=fork_server,
    ) as ranks:
        for rank in ranks:
            rank.wait_ready(WITHIN_S)
        ranks[2].stop()
        assert ranks[0].result(WITHIN_S) < 4 * MAX_HELD_BYTES
        ranks[2].cont()
