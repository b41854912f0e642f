"""The backend in real processes: rendezvous, error texts, shutdown."""

from __future__ import annotations

import gc
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import FileStore, HashStore, Store, TCPStore
from torch.distributed import distributed_c10d

import ringleader
from ringleader.errors import (
    ConfigError,
    DeadlineExceeded,
    GroupAborted,
    RingleaderError,
)
from ringleader.groups.group import Group
from ringleader.testing.processes import ForkServer, Ready, spawn_ranks
from ringleader.transport.free_ports import free_ports

BACKEND = "ringleader"
WITHIN_S = 300.0
"""A world takes less than a second, and ten on a busy machine."""
LIMIT_S = 200.0
"""The timeout of groups in which no test waits for it."""
SHORT_S = 0.4
MONITOR_S = 4.0
"""Within which those who take part in a monitored barrier have come."""
SOON_S = 100.0
"""Much shorter than LIMIT_S, and much longer than any operation here."""


@pytest.fixture
def play(fork_server: ForkServer) -> Callable[..., list[Any]]:
    """Run a body on every rank of a world; the results in rank order."""

    def run(size: int, body: Callable[..., object], *args: object) -> list[Any]:
        with spawn_ranks(size, body, *args, fork_server=fork_server) as ranks:
            return [rank.result(WITHIN_S) for rank in ranks]

    return run


@contextmanager
def joined(
    group: Group,
    store: str | Store,
    **how: Any,  # noqa: ANN401
) -> Iterator[Any]:
    """torch.distributed among the ranks of ``group``; its default group."""
    dist.init_process_group(
        BACKEND,
        store=FileStore(store, group.size) if isinstance(store, str) else store,
        rank=group.rank,
        world_size=group.size,
        timeout=timedelta(seconds=LIMIT_S),
        **how,
    )
    try:
        yield distributed_c10d._get_default_group()
    finally:
        group.barrier()  # nobody leaves while others still test
        dist.destroy_process_group()


def tcp_store(group: Group) -> TCPStore:
    """Create a store for all ranks, on rank 0, at a port that is free."""
    host, port = "127.0.0.1", torch.zeros(1, dtype=torch.int64)
    kept = TCPStore(host, 0, None, group.rank == 0) if group.rank == 0 else None
    if kept is not None:
        port.fill_(kept.port)
    group.broadcast(port, 0)
    return kept or TCPStore(host, int(port))


def summed(group: dist.ProcessGroup | None = None) -> float:
    """The sum of rank + 1 over a group."""
    tensor = torch.tensor([dist.get_rank() + 1.0])
    dist.all_reduce(tensor, group=group)
    return float(tensor)


def failure(call: Callable[[], object]) -> tuple[str, str, float]:
    """Return (class, text, seconds) of the error it raises."""
    start_s = time.monotonic()
    with pytest.raises(Exception) as caught:  # noqa: PT011 - the test looks at it
        call()
    kind = type(caught.value).__name__
    return kind, str(caught.value), time.monotonic() - start_s


# -- how ranks meet ----------------------------------------------------------------


def meet(
    group: Group, _ready: Ready, scheme: str, where: str
) -> tuple[float, list[str]]:
    if scheme == "env":
        host, port = where.split(":")
        os.environ.update(MASTER_ADDR=host, MASTER_PORT=port)
        os.environ.update(RANK=str(group.rank), WORLD_SIZE=str(group.size))
        dist.init_process_group(BACKEND)
    else:
        dist.init_process_group(
            BACKEND, f"{scheme}://{where}", rank=group.rank, world_size=group.size
        )
    names: list[Any] = [None] * group.size
    dist.all_gather_object(names, dist.get_backend())
    total = summed()
    group.barrier()
    dist.destroy_process_group()
    return total, names


@pytest.mark.parametrize("scheme", ["env", "tcp", "file"])
def test_ranks_meet_wherever_torch_lets_them(
    scheme: str, play: Callable[..., list[Any]], tmp_path: Path
) -> None:
    where = f"127.0.0.1:{free_ports(1)[0]}" if scheme != "file" else f"{tmp_path}/meet"
    assert play(3, meet, scheme, where) == [(6.0, [BACKEND] * 3)] * 3


def work_on_another_device(group: Group, _ready: Ready, path: str) -> list[float]:
    """Tensors without an explicit device are created on "meta" here."""
    torch.set_default_device("meta")
    total = torch.full((2,), group.rank + 1.0, device="cpu")
    large = torch.full((100_000,), group.rank + 1.0, device="cpu")
    entry = torch.tensor([[group.rank]], device="cpu"), torch.ones(1, device="cpu")
    sparse = torch.sparse_coo_tensor(*entry, (3,), device="cpu")
    with joined(group, path):
        dist.all_reduce(total)
        dist.all_reduce(large, async_op=True).get_future().wait()
        dist.all_reduce(sparse)
        dist.monitored_barrier()
        model = torch.nn.Linear(2, 1, device="cpu")
        ringleader.sync_module_states(model, group)
    return [float(total[1]), float(large[-1]), float(sparse.to_dense().sum())]


def test_the_default_device_of_torch_is_not_ours(
    play: Callable[..., list[Any]], tmp_path: Path
) -> None:
    found = play(2, work_on_another_device, f"{tmp_path}/store")
    assert found == [[3.0, 3.0, 2.0]] * 2


def meet_again(group: Group, _ready: Ready) -> list[tuple[float, float]]:
    store = tcp_store(group)
    results = []
    for _turn in range(3):
        with joined(group, store):
            part: Any = dist.new_group([0, 1])
            results.append((summed(), summed(part)))
    group.barrier()  # rank 0 keeps the store
    return results


def test_a_destroyed_group_can_be_formed_again_in_the_same_store(
    play: Callable[..., list[Any]],
) -> None:
    assert play(2, meet_again) == [[(3.0, 3.0)] * 3] * 2


def be_alone(group: Group, _ready: Ready) -> dict[str, Any]:
    with joined(group, HashStore()) as alone:
        tensor, parts = torch.tensor([5.0]), [torch.zeros(1)]
        dist.all_gather(parts, tensor)
        dist.broadcast(tensor, 0)
        halves = torch.zeros(2)
        dist.all_to_all_single(halves, torch.tensor([1.0, 2.0]))
        objects: list[Any] = [None]
        dist.all_gather_object(objects, {"rank": 0})
        future = dist.all_reduce(tensor, async_op=True)
        assert future is not None
        future.wait()
        dist.barrier()
        dist.monitored_barrier()
        return {
            "sum": summed(),
            "gathered": parts[0].tolist(),
            "halves": halves.tolist(),
            "objects": objects,
            "links": alone.group.links(),
            "size": dist.get_world_size(),
        }


def test_a_world_of_one_does_everything_with_itself(
    play: Callable[..., list[Any]],
) -> None:
    (alone,) = play(1, be_alone)
    assert alone == {
        "sum": 1.0,
        "gathered": [5.0],
        "halves": [1.0, 2.0],
        "objects": [{"rank": 0}],
        "links": {},
        "size": 1,
    }


# -- options -----------------------------------------------------------------------


def look_at_links(group: Group, _ready: Ready, store: str) -> dict[str, dict[int, str]]:
    links = {}
    tcp = ringleader.BackendOptions(transport="tcp")
    with joined(group, f"{store}1") as world:
        assert summed() == 3.0
        links["default"] = world.group.links()
        part: Any = dist.new_group([0, 1], pg_options=tcp)
        assert summed(part) == 3.0
        links["new_group"] = part.group.links()
    with joined(group, f"{store}2", pg_options=tcp) as world:
        assert summed() == 3.0
        links["options"] = world.group.links()
    os.environ["RINGLEADER_TRANSPORT"] = "tcp"
    with joined(group, f"{store}3") as world:
        assert summed() == 3.0
        links["environment"] = world.group.links()
    auto = ringleader.BackendOptions(transport="auto")
    with joined(group, f"{store}4", pg_options=auto) as world:
        links["both"] = world.group.links()
    return links


def test_the_transport_is_the_one_that_was_asked_for(
    play: Callable[..., list[Any]], tmp_path: Path
) -> None:
    for rank, links in enumerate(play(2, look_at_links, f"{tmp_path}/store")):
        peer = 1 - rank
        assert links == {
            "default": {peer: "shm"},
            "new_group": {peer: "tcp"},
            "options": {peer: "tcp"},
            "environment": {peer: "tcp"},
            "both": {peer: "shm"},
        }, "the program's word counts more than the environment's"


def ask_for_nonsense(group: Group, _ready: Ready) -> list[tuple[str, str, bool]]:
    outcomes = []
    for options in (
        {"transport": "tcp"},
        ringleader.BackendOptions(transport="pigeon"),
        ringleader.BackendOptions(connections=-1),
    ):
        kind, text, _ = failure(
            lambda options=options: dist.init_process_group(  # type: ignore[misc]
                BACKEND, store=HashStore(), rank=0, world_size=1, pg_options=options
            )
        )
        outcomes.append((kind, text, dist.is_initialized()))
    with joined(group, HashStore()):
        assert summed() == 1.0
    return outcomes


def test_options_that_make_no_sense_are_named_and_can_be_corrected(
    play: Callable[..., list[Any]],
) -> None:
    (outcomes,) = play(1, ask_for_nonsense)
    assert [kind for kind, _, _ in outcomes] == [ConfigError.__name__] * 3
    texts = [text for _, text, _ in outcomes]
    assert texts[0] == "pg_options must be ringleader.BackendOptions, not dict"
    assert "'pigeon'" in texts[1]
    assert "got -1" in texts[2]
    assert not any(is_initialized for _, _, is_initialized in outcomes)


# -- errors ------------------------------------------------------------------------


def lose_one_of_a_part(group: Group, _ready: Ready, store: str) -> dict[str, Any]:
    """Global rank 2 is rank 1 of the subgroup, and does not arrive."""
    errors: dict[str, Any] = {}
    with joined(group, store):
        parts: list[Any] = [dist.new_group([1, 2]) for _ in range(4)]
        if group.rank == 1:
            for part in parts:
                part.set_timeout(timedelta(seconds=SHORT_S))
            one = torch.ones(1)
            calls: dict[str, Callable[[], Any]] = {
                "sync": lambda: dist.all_reduce(one, group=parts[0]),
                "wait": lambda: parts[1].allreduce([one], asynchronous()).wait(),
                "future": lambda: (
                    parts[2].allreduce([one], asynchronous()).get_future().wait()
                ),
                "recv": lambda: dist.recv(one, 2, group=parts[3]),
            }
            errors = {name: failure(call) for name, call in calls.items()}
    return errors


def asynchronous() -> dist.AllreduceOptions:
    opts = dist.AllreduceOptions()
    opts.asyncOp = True
    return opts


def test_an_error_of_a_part_names_the_rank_in_the_whole(
    play: Callable[..., list[Any]], tmp_path: Path
) -> None:
    _, errors, _ = play(3, lose_one_of_a_part, f"{tmp_path}/store")
    for name, (kind, text, took_s) in errors.items():
        assert kind == ("RuntimeError" if name == "future" else "DeadlineExceeded")
        assert "rank 1" in text, name
        assert "[rank 1 of this group is global rank 2]" in text, name
        assert text.count("global rank") == 1, "once is enough"
        assert took_s < SOON_S


def fail_in_debug_mode(group: Group, _ready: Ready, store: str, level: str) -> str:
    os.environ["TORCH_DISTRIBUTED_DEBUG"] = level
    dist.set_debug_level_from_env()  # type: ignore[attr-defined] # is public
    with joined(group, store) as world:
        dist.barrier()
        if group.rank == 1:
            return ""
        world.set_timeout(timedelta(seconds=SHORT_S))
        kind, text, _ = failure(lambda: dist.all_reduce(torch.ones(123)))
        assert kind == DeadlineExceeded.__name__
        return text


@pytest.mark.parametrize("level", ["OFF", "INFO", "DETAIL"])
def test_debug_mode_tells_everything_about_the_group(
    level: str, play: Callable[..., list[Any]], tmp_path: Path
) -> None:
    text, _ = play(2, fail_in_debug_mode, f"{tmp_path}/store", level)
    details = [
        "\n  group '0' 'default_pg'",
        "\n  this is rank 0 of 2, global ranks [0, 1]",
        "\n  links: 1: shm",
        "\n  last call: all_reduce(123 x float32",
        "\n  of its 123 elements final: none",
        f"\n  timeout: {SHORT_S} s",
    ]
    for detail in details:
        assert (detail in text) is (level == "DETAIL"), detail
    assert "rank 1" in text.splitlines()[0]


def wait_too_long(group: Group, _ready: Ready, store: str, how: str) -> Any:  # noqa: ANN401
    with joined(group, store) as world:
        limit = timedelta(seconds=SHORT_S)
        if how == "set_timeout":
            world.set_timeout(limit)
        elif how == "_set_pg_timeout":
            distributed_c10d._set_pg_timeout(limit)
        else:
            part: Any = dist.new_group([0, 1])
            distributed_c10d._set_pg_timeout(limit, part)
            assert world.group.timeout_s == LIMIT_S, "the other group's stays"
            world = part
        if group.rank == 0:
            return failure(lambda: world.allreduce([torch.ones(3)]).wait())
    return None


@pytest.mark.parametrize("how", ["set_timeout", "_set_pg_timeout", "of a part"])
def test_a_new_timeout_counts_from_the_next_call(
    how: str, play: Callable[..., list[Any]], tmp_path: Path
) -> None:
    (kind, text, took_s), _ = play(2, wait_too_long, f"{tmp_path}/store", how)
    assert kind == DeadlineExceeded.__name__
    assert f"{SHORT_S} s" in text
    assert SHORT_S * 0.9 < took_s < SOON_S


def be_aborted(group: Group, _ready: Ready, store: str) -> tuple[str, str, float]:
    with joined(group, store) as world:
        dist.barrier()
        if group.rank == 0:
            work: Any = dist.all_reduce(torch.ones(5), async_op=True)
        else:
            work = dist.irecv(torch.ones(5), 0)
        aborter = threading.Thread(target=world.abort)
        if group.rank == 0:
            aborter.start()
        error = failure(work.wait)
        if group.rank == 0:
            aborter.join(SOON_S)
        return error


def test_an_abort_from_another_thread_ends_a_wait_on_every_rank(
    play: Callable[..., list[Any]], tmp_path: Path
) -> None:
    for kind, text, took_s in play(2, be_aborted, f"{tmp_path}/store"):
        assert kind == GroupAborted.__name__
        assert "torch.distributed aborted the group" in text
        assert took_s < SOON_S


# -- monitored_barrier -------------------------------------------------------------


def monitor(group: Group, _ready: Ready, store: str) -> dict[str, Any]:
    """Rank 1 takes part in the first barrier only."""
    found: dict[str, Any] = {}
    limit = timedelta(seconds=MONITOR_S)
    with joined(group, store):
        gloo: Any = dist.new_group(backend="gloo")
        part: Any = dist.new_group([0, 2])
        for each in (None, gloo):
            dist.monitored_barrier(each, timedelta(seconds=SOON_S))
            dist.monitored_barrier(each, SOON_S)
        dist.monitored_barrier(part)  # torch only warns those who are not in it
        if group.rank != 1:
            everybody = group.rank == 0
            for name, each in (("gloo", gloo), ("ours", None)):
                dist.barrier(part)  # both begin in the same moment
                found[name] = failure(
                    lambda each=each: dist.monitored_barrier(  # type: ignore[misc]
                        each, limit, wait_all_ranks=everybody
                    )
                )
        group.barrier()
    return found


def test_a_monitored_barrier_is_ours_on_our_groups_and_torchs_on_others(
    play: Callable[..., list[Any]], tmp_path: Path
) -> None:
    root, _, other = play(3, monitor, f"{tmp_path}/store")
    for name, error in (("ours", "DeadlineExceeded"), ("gloo", "RuntimeError")):
        kind, text, took_s = root[name]
        assert kind == error, text
        assert "failed to pass monitoredBarrier in 4000 ms" in text
        assert "Ranks 1 " in text, "those and only those who did not come"
        assert MONITOR_S * 0.9 < took_s < SOON_S
        kind, text, took_s = other[name]
        assert kind == error, text
        assert "ank 2 successfully reached monitoredBarrier" in text
        assert "check rank 0 logs" in text
        assert took_s < SOON_S


# -- counting and leaving ----------------------------------------------------------


def count(group: Group, _ready: Ready, store: str) -> list[int]:
    """Return sequence numbers after various calls, some on one rank only."""
    with joined(group, store) as world:
        numbers = [world._get_sequence_number_for_group()]
        summed()
        dist.barrier()
        numbers.append(world._get_sequence_number_for_group())
        works = [dist.all_reduce(torch.ones(9), async_op=True) for _ in range(3)]
        for work in works:
            assert work is not None
            work.wait()
        with distributed_c10d._coalescing_manager():
            for _ in range(2):
                dist.all_reduce(torch.ones(4))
        numbers.append(world._get_sequence_number_for_group())
        if group.rank == 0:
            dist.send(torch.ones(1), 1)
        else:
            dist.recv(torch.ones(1), 0)
        dist.broadcast_object_list([group.rank], 0)
        numbers.append(world._get_sequence_number_for_group())
    return numbers


def test_all_ranks_count_their_calls_alike(
    play: Callable[..., list[Any]], tmp_path: Path
) -> None:
    here, there = play(2, count, f"{tmp_path}/store")
    assert here == there
    assert here == sorted(set(here)), "and every round was counted"
    assert here[1] - here[0] == 2


def leave(group: Group, _ready: Ready, store: str) -> list[list[str]]:
    """Return the leaks of a group; the first two lives load lazy modules."""
    stores: list[Store] = [FileStore(store, group.size), tcp_store(group)]
    before = belongings()
    lives = []
    for each in stores * 2:
        busy_life(group, each)
        gc.collect()  # the group and what explains its errors know each other
        lives.append(sorted(belongings() - before))
        before = belongings()
    group.barrier()  # rank 0 keeps the store
    return lives[2:]


def busy_life(group: Group, store: Store) -> None:
    """Use a group with subgroups, threads and futures, then destroy it."""
    before = belongings()
    with joined(group, store) as world:
        parts: list[Any] = [world, dist.new_group(), dist.new_group([0, 1])]
        assert [summed(part) for part in parts] == [3.0] * 3
        works: list[Any] = [
            dist.all_reduce(torch.ones(1000), group=part, async_op=True)
            for part in parts
        ]
        torch.futures.wait_all([work.get_future() for work in works])
        kinds = {name.split(" ")[0] for name in belongings() - before}
        assert kinds == {"thread", "task", "descriptor", "map"}, "the test would see it"
    until_s = time.monotonic() + SOON_S
    while left := [
        n for n in belongings() - before if n.startswith(("thread", "task"))
    ]:
        assert time.monotonic() < until_s, left
        time.sleep(0.01)


def belongings() -> Counter[str]:
    """Count Python threads, system threads, file descriptors and shared memory."""
    names = [f"thread {thread.name}" for thread in threading.enumerate()]
    names += [f"task {number}" for number in os.listdir("/proc/self/task")]
    for number in os.listdir("/proc/self/fd"):
        with suppress(OSError):  # that of the listing itself is gone
            names.append(f"descriptor {os.readlink(f'/proc/self/fd/{number}')}")
    lines = Path("/proc/self/maps").read_text().splitlines()
    names += [f"map {line}" for line in lines if "/dev/shm/" in line or "memfd" in line]
    return Counter(names)


def test_a_destroyed_group_leaves_no_thread_and_no_descriptor(
    play: Callable[..., list[Any]], tmp_path: Path
) -> None:
    lives = play(2, leave, f"{tmp_path}/store")
    assert lives == [[[], []]] * 2


def use_what_was_destroyed(group: Group, _ready: Ready, store: str) -> list[str]:
    with joined(group, store) as world:
        summed()
    with pytest.raises(RingleaderError) as caught:
        world.allreduce([torch.ones(2)])
    return [type(caught.value).__name__, str(caught.value)]


def test_a_destroyed_group_says_that_it_is_closed(
    play: Callable[..., list[Any]], tmp_path: Path
) -> None:
    want = [GroupAborted.__name__, "the group is closed"]
    assert play(2, use_what_was_destroyed, f"{tmp_path}/store") == [want] * 2
