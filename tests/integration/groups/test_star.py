"""Groups over gRPC, in which all links pass through rank 0.

Ranks are real processes on this machine. The old system's defects that a star invites
(a contribution of another step, a value of the broadcast before, a barrier that counts
a rank twice) are named by their number.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path

import grpc
import pytest
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import FileStore

from ringleader.backend.options import BackendOptions
from ringleader.deadline import Deadline
from ringleader.errors import (
    CallMismatch,
    ConfigError,
    DeadlineExceeded,
    PeerError,
    PeerLost,
    PeerRefused,
    PeerUnreachable,
    PeerUntrusted,
)
from ringleader.groups.formation import group as form_group
from ringleader.groups.group import Group
from ringleader.groups.handle import view_hash
from ringleader.identity.cluster_secret import ClusterSecret, Secret
from ringleader.identity.credentials import Credentials
from ringleader.identity.node_key import NodeKey
from ringleader.testing.processes import ForkServer, Ready, spawn_ranks
from ringleader.testing.threaded_world import run_threads
from ringleader.transport.free_ports import free_ports
from ringleader.transport.star.member import Member
from ringleader.transport.star.star import Star
from tests.kit.certificates import TestCa
from tests.kit.undecodable_call import UNIMPLEMENTED, send_undecodable_call

SIZE = 4
WITHIN_S = 200.0
COUNT = 30_011
STEPS = 100


def numbers(rank: int, step: int = 0, count: int = COUNT) -> torch.Tensor:
    """What ``rank`` brings: different on every rank and in every step."""
    generator = torch.Generator().manual_seed(1000 * step + rank)
    return torch.randn(count, generator=generator, dtype=torch.float64)


def total(size: int = SIZE, step: int = 0) -> torch.Tensor:
    return torch.stack([numbers(rank, step) for rank in range(size)]).sum(0)


def check_collectives(group: Group, ready: Ready) -> dict[str, object]:
    rank, size = group.rank, group.size
    for name in (None, "star", "ring", "tree", "direct", "doubling", "halving"):
        mine = numbers(rank)
        group.all_reduce(mine, algorithm=name)
        torch.testing.assert_close(mine, total(), rtol=1e-12, atol=1e-12)
    for root in range(size):
        value = numbers(rank, root)
        group.broadcast(value, root)
        assert torch.equal(value, numbers(root, root)), "ZF-2"
        value = numbers(rank, root)
        group.reduce(value, root)
        if rank == root:
            torch.testing.assert_close(value, total(step=root), rtol=1e-12, atol=1e-12)
    pieces = [torch.empty(COUNT, dtype=torch.float64) for _ in range(size)]
    group.all_gather(pieces, numbers(rank))
    assert all(torch.equal(piece, numbers(r)) for r, piece in enumerate(pieces))
    part = torch.empty(5, dtype=torch.float64)
    group.reduce_scatter(part, [numbers(rank, step=i)[:5] for i in range(size)])
    torch.testing.assert_close(part, total(step=rank)[:5], rtol=1e-12, atol=1e-12)
    swapped = torch.empty(size)
    group.all_to_all(swapped, torch.arange(size).float() + 10 * rank)
    assert swapped.tolist() == [10 * r + rank for r in range(size)]
    large = torch.full((1_500_000,), rank + 1.0)  # 6 MB in one tensor
    group.all_reduce(large)
    assert large.eq(10).all(), "ZF-12"
    check_dtypes(group)
    check_messages(group)
    check_subgroups(group)
    group.barrier()
    return {
        "links": set(group.links().values()),
        "choice": group.choice("all_reduce", 64 << 20),
        "connections": len(connections()),
    }


def connections() -> set[int]:
    """Return the TCP connections of this process, either side of them.

    By their descriptors: the table of all connections changes while it is read.
    """
    found = set()
    for number in os.listdir("/proc/self/fd"):
        with suppress(OSError):  # it is no socket, or the descriptor of the listing
            if is_connected(int(number)):
                found.add(os.fstat(int(number)).st_ino)
    return found


def is_connected(number: int) -> bool:
    seen = socket.socket(fileno=number)
    try:
        if seen.family not in (socket.AF_INET, socket.AF_INET6):
            return False
        return seen.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1) == b"\x01"
    finally:
        seen.detach()  # it is another's


def check_dtypes(group: Group) -> None:
    """ZF-17: every dtype is exact, and means of integers are those of integers."""
    for dtype in (torch.int64, torch.int32, torch.uint8, torch.float16, torch.bfloat16):
        value = torch.arange(37).to(dtype) + group.rank
        group.all_reduce(value, op="sum")
        assert torch.equal(value, (4 * torch.arange(37) + 6).to(dtype)), dtype
    large = torch.tensor([2**53 + 1 + group.rank])  # not a float64
    group.all_reduce(large)
    assert large.item() == 4 * 2**53 + 10
    mean = torch.tensor([group.rank, 10 * group.rank])
    group.all_reduce(mean, op="mean")
    assert mean.tolist() == [1, 15]  # 6 / 4 and 60 / 4, as in NCCL
    coded = numbers(group.rank).float()
    group.all_reduce(coded, codec="int8")
    assert (coded - total().float()).abs().max() < 0.2


def check_messages(group: Group) -> None:
    """Send and receive around a ring, so that workers talk to workers."""
    after, before = (group.rank + 1) % group.size, (group.rank - 1) % group.size
    sending = group.send(numbers(group.rank), after, async_op=True)
    received = torch.empty(COUNT, dtype=torch.float64)
    group.recv(received, before)
    sending.wait()
    assert torch.equal(received, numbers(before))


def check_subgroups(group: Group) -> None:
    """Sub-groups with rank 0 last, and without it."""
    for ranks in ([3, 1, 0], [3, 2, 1]):
        sub = group.subgroup(ranks)
        if sub is None:
            continue
        value = torch.tensor([float(group.rank)])
        sub.all_reduce(value)
        assert value.item() == sum(ranks)
        value = torch.tensor([float(sub.rank)])
        sub.broadcast(value, 1)
        assert value.item() == 1
        sub.close()


@pytest.mark.slow
def test_every_operation_gives_the_values_of_a_float64_reference(
    fork_server: ForkServer,
) -> None:
    with spawn_ranks(
        SIZE,
        check_collectives,
        transport="grpc",
        timeout_s=WITHIN_S,
        fork_server=fork_server,
    ) as ranks:
        results = [rank.result(WITHIN_S) for rank in ranks]
    assert [r["links"] for r in results] == [{"grpc"}] * SIZE
    # A worker has one connection, and it leads to rank 0.
    assert [r["connections"] for r in results] == [SIZE - 1, 1, 1, 1]
    # Which algorithm is best depends on the links as measured; that they lead through
    # rank 0 does not.
    _algorithm, reason = results[1]["choice"]
    assert "all bytes pass through rank 0" in reason


# -- what a star must not mix up ---------------------------------------------------


def run_ahead(group: Group, ready: Ready, steps: int) -> int:
    """ZF-1: workers never wait for the root, which is always the last to call."""
    works, sums = [], []
    for step in range(steps):
        value = torch.full((64,), float(step * group.size + group.rank))
        if group.rank == 0:
            time.sleep(0.001)
        works.append(group.all_reduce(value, algorithm="star", async_op=True))
        sums.append(value)
        if group.rank == 0:
            works[-1].wait()
    for work in works:
        work.wait()
    ranks = sum(range(group.size))
    for step, value in enumerate(sums):
        assert value.eq(step * group.size**2 + ranks).all(), f"step {step}"
    return steps


def broadcast_twice(group: Group, ready: Ready) -> None:
    """ZF-2: each broadcast gives its own value, whoever is late."""
    values = [torch.full((8,), -1.0) for _ in range(20)]
    for step, value in enumerate(values):
        if group.rank == step % group.size:
            time.sleep(0.002)
        if group.rank == 0:
            value.fill_(step)
        group.broadcast(value, 0)
    assert [v[0].item() for v in values] == list(range(20))


def steps_in_order(group: Group, ready: Ready) -> None:
    run_ahead(group, ready, STEPS)
    broadcast_twice(group, ready)
    mismatch(group)


def mismatch(group: Group) -> None:
    """ZF-13: ranks that bring other shapes get an error, not a shorter sum."""
    with pytest.raises(CallMismatch, match="all_reduce"):
        group.all_reduce(torch.ones(10 + (group.rank == 2)), algorithm="star")


def test_a_step_never_meets_another_step(fork_server: ForkServer) -> None:
    """ZF-1, ZF-2, ZF-13: contributions are keyed by group, sequence and rank."""
    with spawn_ranks(
        3, steps_in_order, transport="grpc", timeout_s=90.0, fork_server=fork_server
    ) as ranks:
        for rank in ranks:
            rank.result(WITHIN_S)


def test_a_barrier_after_one_that_timed_out() -> None:
    """ZF-10: an arrival at the first barrier does not count in the second one."""
    peers = [f"127.0.0.1:{port}" for port in free_ports(3)]
    have_given_up = threading.Barrier(3)
    arrived: list[int] = []

    def meet(rank: int) -> int:
        with form_group(peers, rank, transport="grpc", timeout_s=90.0) as first:
            if rank != 2:
                with pytest.raises(DeadlineExceeded):
                    first.barrier(timeout_s=0.3)
            have_given_up.wait(WITHIN_S)
        with form_group(peers, rank, transport="grpc", timeout_s=90.0) as second:
            if rank == 2:
                time.sleep(0.3)
            arrived.append(rank)
            second.barrier(timeout_s=90.0)
            return len(arrived)

    assert run_threads([partial(meet, rank) for rank in range(3)]) == [3, 3, 3]


def test_a_second_process_with_a_rank_is_refused() -> None:
    """ZF-13: what it sends is never added; the first one goes on."""
    peers = [f"127.0.0.1:{port}" for port in free_ports(2)]
    name = "peers:" + ",".join(peers)
    form = partial(form_group, peers, transport="grpc", timeout_s=90.0)
    groups = run_threads([partial(form, rank) for rank in range(2)])
    twin = Member(world=view_hash(name), rank=1, size=2)
    port = int(peers[0].rpartition(":")[2])
    with pytest.raises(PeerRefused, match="same rank is already connected"):
        Star.dial(twin, [(("127.0.0.1", port), None)], Deadline.after(60.0))
    stranger = Member(world=1, rank=1, size=2)
    with pytest.raises(PeerRefused, match="same order"):
        Star.dial(stranger, [(("127.0.0.1", port), None)], Deadline.after(60.0))
    values = [torch.ones(3), torch.ones(3)]
    run_threads([partial(g.all_reduce, values[g.rank]) for g in groups])
    assert values[0].tolist() == [2.0] * 3
    for group in groups:
        group.close()


# -- losses ------------------------------------------------------------------------


def test_a_root_that_is_not_there_is_named_in_time() -> None:
    peers = ["127.0.0.1:1", "worker"]
    start_s = time.monotonic()
    with pytest.raises(PeerUnreachable, match=r"rank 0: .*127\.0\.0\.1:1 did not"):
        form_group(peers, 1, transport="grpc", timeout_s=1.0)
    assert time.monotonic() - start_s < 30.0


def test_a_root_that_is_closing_its_last_star_is_tried_again() -> None:
    """It cancels a call that comes at that moment."""
    peers = [f"127.0.0.1:{free_ports(1)[0]}", "worker"]
    called = threading.Event()

    def cancel(_: bytes, context: grpc.ServicerContext) -> Iterator[bytes]:
        called.set()
        context.abort(grpc.StatusCode.CANCELLED, "CANCELLED")
        yield b""

    closing = grpc.server(ThreadPoolExecutor(1))
    methods = {"Attach": grpc.unary_stream_rpc_method_handler(cancel)}
    service = "ringleader.transport.star.v1.Star"
    handler = grpc.method_handlers_generic_handler(service, methods)
    closing.add_generic_rpc_handlers((handler,))
    closing.add_insecure_port(peers[0])
    closing.start()

    def join(rank: int) -> list[float]:
        if rank == 0:
            assert called.wait(WITHIN_S)
            closing.stop(None).wait(WITHIN_S)
        with form_group(peers, rank, transport="grpc", timeout_s=90.0) as group:
            value = torch.ones(3)
            group.all_reduce(value)
            return value.tolist()

    assert run_threads([partial(join, rank) for rank in range(2)]) == [[2.0] * 3] * 2


def test_the_list_of_peers_is_checked() -> None:
    with pytest.raises(ConfigError, match="host:port"):
        form_group(["root", "worker"], 1, transport="grpc", timeout_s=1.0)
    with pytest.raises(ConfigError, match="rank 2 is not in a list of 2"):
        form_group(["127.0.0.1:1", "worker"], 2, transport="grpc", timeout_s=1.0)


def reduce_forever(group: Group, ready: Ready) -> None:
    value = torch.ones(1 << 20)
    ready()
    while True:
        group.all_reduce(value.clone())


@pytest.mark.parametrize("victim", [0, pytest.param(2, marks=pytest.mark.slow)])
def test_a_killed_rank_is_named_on_all_others(
    fork_server: ForkServer, victim: int
) -> None:
    with spawn_ranks(
        SIZE,
        reduce_forever,
        transport="grpc",
        timeout_s=90.0,
        fork_server=fork_server,
    ) as ranks:
        for rank in ranks:
            rank.wait_ready(WITHIN_S)
        time.sleep(0.1)
        killed_at_s = ranks[victim].kill()
        for rank in ranks:
            if rank.rank == victim:
                continue
            error = rank.error(WITHIN_S)
            assert isinstance(error, PeerLost), error
            assert error.peer == victim, error
            assert rank.ended_at_s - killed_at_s < 60.0, "later than the deadline"


# -- torch -------------------------------------------------------------------------


def form_torch_groups(group: Group, ready: Ready, store: str) -> list[float]:
    """Groups of torch's world share one star: a worker can reach nothing else."""
    options = BackendOptions(transport="grpc")
    before = connections()
    dist.init_process_group(
        "ringleader",
        store=FileStore(store, group.size),
        rank=group.rank,
        world_size=group.size,
        pg_options=options,
    )
    sums = []
    for ranks in (None, [1, 2, 3], [3, 0]):
        part = dist.new_group(ranks, pg_options=options) if ranks else dist.group.WORLD
        if ranks is None or group.rank in ranks:
            value = torch.tensor([dist.get_rank() + 1.0])
            dist.all_reduce(value, group=part)
            sums.append(value.item())
    sums.append(float(len(connections() - before)))
    group.barrier()
    dist.destroy_process_group()
    return sums


@pytest.mark.slow
def test_torch_groups_share_one_connection_per_worker(
    fork_server: ForkServer, tmp_path: Path
) -> None:
    store = str(tmp_path / "store")
    with spawn_ranks(
        SIZE, form_torch_groups, store, transport="shm", fork_server=fork_server
    ) as ranks:
        results = [rank.result(WITHIN_S) for rank in ranks]
    # The sums over all, {1, 2, 3} and {0, 3}, and the number of connections.
    assert results == [[10, 5, 3], [10, 9, 1], [10, 9, 1], [10, 9, 5, 1]]


# -- certificates ------------------------------------------------------------------


def in_cluster(secret: int) -> Credentials:
    root = Secret(secret.to_bytes(32, "big"))
    return Credentials.issue(ClusterSecret(root=root), NodeKey.ephemeral())


def add_up(group: Group, ready: Ready) -> tuple[float, set[str]]:
    value = torch.full((100_000,), group.rank + 1.0)
    group.all_reduce(value, algorithm="ring")
    return value.sum().item(), set(group.links().values())


@pytest.mark.parametrize(
    "whose", ["cluster", pytest.param("user", marks=pytest.mark.slow)]
)
def test_certificates_encrypt_a_star(
    fork_server: ForkServer, tmp_path: Path, whose: str
) -> None:
    in_cluster(1).to_file(tmp_path / "credentials")
    env = {"RINGLEADER_CREDENTIALS": str(tmp_path / "credentials")}
    if whose == "user":
        env = TestCa().files(tmp_path, "lab.example", "127.0.0.1").environment()
    with spawn_ranks(
        3, add_up, transport="grpc", timeout_s=90.0, fork_server=fork_server, env=env
    ) as ranks:
        assert [r.result(WITHIN_S) for r in ranks] == [(600_000.0, {"grpc"})] * 3


def test_strangers_are_refused_before_they_say_who_they_are() -> None:
    member = Member(world=5, rank=0, size=2)
    deadline = Deadline.after(90.0)
    ours = in_cluster(1).pem()
    root = Star.listen(member, ("127.0.0.1", range(1)), ours, deadline)
    worker = Member(world=5, rank=1, size=2)
    try:
        theirs = in_cluster(2).pem()
        with pytest.raises(PeerError, match="root of the star at 127") as caught:
            Star.dial(worker, [(root.address, theirs)], Deadline.after(2.0))
        assert isinstance(caught.value, PeerUntrusted | PeerUnreachable)
        with pytest.raises(PeerUnreachable, match="root of the star at 127"):
            Star.dial(worker, [(root.address, None)], Deadline.after(1.0))
        Star.dial(worker, [(root.address, in_cluster(1).pem())], deadline).close()
    finally:
        root.close()
        root.wait_until_left(WITHIN_S)


@pytest.mark.parametrize("is_plain", [True, False], ids=["plain", "member"])
def test_a_call_that_no_text_names_does_not_end_a_star(is_plain: bool) -> None:
    """Who is in it stays, and who comes later gets in."""
    pem = None if is_plain else in_cluster(1).pem()
    world, deadline = partial(Member, world=5, size=3), Deadline.after(90.0)
    stars = [Star.listen(world(rank=0), ("127.0.0.1", range(1)), pem, deadline)]
    try:
        for rank in (1, 2):
            address = stars[0].address
            stars.append(Star.dial(world(rank=rank), [(address, pem)], deadline))
            assert UNIMPLEMENTED in send_undecodable_call(address[1], pem)
    finally:
        for star in reversed(stars):
            star.close()
        stars[0].wait_until_left(WITHIN_S)


def test_a_plain_star_is_for_this_machine_only() -> None:
    with pytest.raises(ConfigError, match="another machine"):
        form_group(["192.0.2.1:5", "worker"], 1, transport="grpc", timeout_s=1.0)
    member = Member(world=5, rank=0, size=2)
    deadline = Deadline.after(90.0)
    address = ("127.0.0.1", range(1))
    root = Star.listen(member, address, None, deadline, accepts=lambda host: False)
    worker = Member(world=5, rank=1, size=2)
    try:
        with pytest.raises(PeerRefused, match="nothing encrypts this star"):
            Star.dial(worker, [(root.address, None)], deadline)
    finally:
        root.close()
        root.wait_until_left(WITHIN_S)
