"""Calls between the ranks of real groups, in this process and in others."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import gc
import os
import pickle
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest
import torch
from torch import Tensor

import ringleader
from ringleader import rpc
from ringleader.deadline import Deadline
from ringleader.errors import (
    ConfigError,
    DeadlineExceeded,
    GroupAborted,
    PeerLost,
    PeerRefused,
    ProtocolError,
)
from ringleader.groups.group import Group, connect_again
from ringleader.rpc.endpoint import Endpoint
from ringleader.testing.processes import ForkServer, Ready, spawn_ranks
from ringleader.testing.threaded_world import run_threads, world

WITHIN_S = 90.0


def open_endpoint(group: Group, threads: int = 4, max_bytes: int = 1 << 26) -> Endpoint:
    return Endpoint.open(
        group.rank,
        connect_again(group, "rpc", Deadline.after(WITHIN_S)),
        name=f"worker{group.rank}",
        timeout=WITHIN_S,
        threads=threads,
        max_bytes=max_bytes,
    )


@contextlib.contextmanager
def endpoints(
    size: int = 2,
    transport: str = "memory",
    threads: int = 4,
    max_bytes: int = 1 << 26,
) -> Iterator[list[Endpoint]]:
    """One endpoint per rank, all in this process."""
    with world(size, transport) as groups:
        made = run_threads(
            [partial(open_endpoint, g, threads, max_bytes) for g in groups]
        )
        at.update(enumerate(made))
        try:
            yield made
        finally:
            run_threads([partial(e.shutdown, graceful=False) for e in made])
            at.clear()


at: dict[int, Endpoint] = {}
"""The endpoints of the world, for functions that call others."""
running = threading.Semaphore(0)
may_end = threading.Event()


@rpc.register
def echo(*args: object, **kwargs: object) -> object:
    return [args, kwargs]


@rpc.register
def double(tensor: Tensor) -> Tensor:
    return 2 * tensor


@rpc.register
def fail(text: str) -> None:
    raise KeyError(text)


@rpc.register
def give_object() -> object:
    return threading.Lock()


@rpc.register
def hold_up() -> str:
    running.release()
    assert may_end.wait(WITHIN_S)
    return "ended"


@rpc.register
def bounce(left: int, here: int, there: int) -> int:
    """Call the caller back, ``left`` times."""
    if not left:
        return 0
    return 1 + int(at[here].rpc_sync(there, bounce, (left - 1, there, here)))


def same(a: Tensor, b: Tensor) -> bool:
    return a.dtype == b.dtype and a.shape == b.shape and torch.equal(a, b)


def soon(is_true: Callable[[], bool]) -> bool:
    """Whether something becomes true that another thread does."""
    deadline = Deadline.after(WITHIN_S)
    while not is_true():
        if deadline.is_over():
            return False
        gc.collect()
        time.sleep(0.005)
    return True


@contextlib.contextmanager
def end_the_call_when(is_true: Callable[[], bool]) -> Iterator[None]:
    """Let ``hold_up`` end when something has happened that must come before."""

    def let_it_end() -> None:
        soon(is_true)
        may_end.set()

    thread = threading.Thread(target=let_it_end)
    thread.start()
    yield
    thread.join()


TENSORS = [
    torch.arange(7),
    torch.tensor(2.5),
    torch.empty(0, 3),
    torch.randn(13, 7).t(),
    torch.randn(5).bfloat16(),
    torch.tensor([True, False]),
    torch.randn(3, dtype=torch.complex64).conj(),
    torch.randn(701, 1013),  # longer than what the control stream carries
    torch.randn(3, requires_grad=True),
]


@pytest.mark.parametrize("transport", ["memory", "shm", "tcp"])
def test_values_and_tensors_arrive_as_they_were(transport: str) -> None:
    """FT-6: calls are served, and messages of unknown length are received."""
    with endpoints(2, transport) as (a, b):
        value = (1, "x", (2, [3.5, None]), {4: b"5"}, {6}, 10**30, {"k": [TENSORS]})
        args, kwargs = a.rpc_sync(1, "echo", value[:3], {"rest": value[3:]})
        assert repr(args) == repr(value[:3])
        assert repr(kwargs["rest"][:3]) == repr(value[3:6])
        for sent, found in zip(TENSORS, kwargs["rest"][3]["k"][0], strict=True):
            assert same(found, sent.detach())
            assert not found.requires_grad
            assert found.is_contiguous()
        assert same(b.rpc_sync("worker0", double, (TENSORS[7],)), 2 * TENSORS[7])
        mine = torch.ones(3)
        ((found,), _) = a.rpc_sync(0, echo, (mine,))
        assert same(found, mine)
        assert found.data_ptr() != mine.data_ptr(), "a call to itself copies, too"


def test_errors_say_what_happened_and_where() -> None:
    with endpoints(2, max_bytes=100_000) as (a, _):
        with pytest.raises(rpc.RemoteError) as caught:
            a.rpc_sync(1, fail, ("lost key",))
        assert caught.value.peer == 1
        assert caught.value.kind == "KeyError"
        assert "lost key" in caught.value.text
        assert "raise KeyError(text)" in caught.value.traceback
        assert "rank 1: KeyError: 'lost key'" in str(caught.value)
        assert isinstance(caught.value, ringleader.PeerFailed)
        with pytest.raises(PeerRefused, match=r"rank 1: no function .* 'os.system'"):
            a.rpc_sync(1, "os.system", ("true",))
        with pytest.raises(PeerRefused, match="no function"):
            a.rpc_sync(0, "__import__", ("os",))
        with pytest.raises(rpc.RemoteError, match="cannot be sent without pickle"):
            a.rpc_sync(1, give_object)
        with pytest.raises(ConfigError, match="cannot be sent without pickle"):
            a.rpc_sync(1, echo, (threading.Lock(),))
        with pytest.raises(ConfigError, match="RINGLEADER_RPC_MAX_BYTES"):
            a.rpc_sync(1, echo, (bytes(100_001),))
        with pytest.raises(rpc.RemoteError, match="RINGLEADER_RPC_MAX_BYTES"):
            a.rpc_sync(1, "test_rpc.large")
        assert a.rpc_sync(1, echo) == [(), {}], "it still works"


@rpc.register(name="test_rpc.large")
def large() -> bytes:
    return bytes(200_000)


@rpc.register
@dataclasses.dataclass
class Picky:
    """Can be made with 0 only, but changed afterwards."""

    value: int

    def __post_init__(self) -> None:
        if self.value:
            raise AttributeError("no such value")


def picky() -> Picky:
    made = Picky(0)
    made.value = 1
    return made


@rpc.register
def give_picky() -> Picky:
    return picky()


@rpc.register
def give_file_name() -> str:
    return os.fsdecode(b"caf\xe9")


@rpc.register
def fail_with_file_name() -> None:
    raise OSError(os.fsdecode(b"caf\xe9 is not there"))


@rpc.register
def fail_at_length() -> None:
    raise ValueError("\u20ac" * 100_000)


@rpc.register
def give_meta_tensor() -> Tensor:
    return torch.empty(3, device="meta")


def test_every_call_is_answered_whatever_happens_there() -> None:
    """Not by its deadline, and the endpoints go on."""
    with endpoints(2, max_bytes=1 << 16) as (a, _):
        for function, text in [
            ("fail_with_file_name", r"OSError: caf. is not there"),
            ("give_file_name", "ConfigError: .* UTF-8 cannot express"),
            ("fail_at_length", "ValueError: \u20ac"),
            ("give_meta_tensor", "meta"),
        ]:
            with pytest.raises(rpc.RemoteError, match=text):
                a.rpc_sync(1, function)
        with pytest.raises(PeerRefused, match=r"refused: .*no such value"):
            a.rpc_sync(1, echo, (picky(),))
        with pytest.raises(ProtocolError, match="rank 1: RPC: its result: no such"):
            a.rpc_sync(1, give_picky)
        assert a.rpc_sync(1, echo) == [(), {}]


def test_calls_that_make_no_sense_are_refused() -> None:
    with endpoints(2) as (a, _):
        with pytest.raises(ConfigError, match="not registered"):
            a.rpc_sync(1, soon)
        with pytest.raises(ConfigError, match=r"no rank 2 .* are: 0 'worker0', 1"):
            a.rpc_sync(2, echo)
        with pytest.raises(ConfigError, match="no rank 'worker7'"):
            a.rpc_sync("worker7", echo)
        with pytest.raises(ConfigError, match="use a number of seconds"):
            a.rpc_sync(1, echo, timeout=0)
        with pytest.raises(ConfigError, match="RPC is not started"):
            rpc.rpc_sync(1, echo)
        with pytest.raises(ConfigError, match="there is no group"):
            rpc.start()
        rpc.shutdown()


def test_a_call_ends_at_its_deadline_and_a_late_answer_is_ignored() -> None:
    may_end.clear()
    with endpoints(2) as (a, _):
        began_s = time.monotonic()
        with pytest.raises(DeadlineExceeded, match=r"rank 1: .*'hold_up' within 0"):
            a.rpc_sync(1, hold_up, timeout=0.1)
        future = a.rpc_async(1, hold_up, timeout=0.1)
        assert soon(future.done), "also if nobody waits for it"
        assert isinstance(future.exception(), DeadlineExceeded)
        assert time.monotonic() - began_s < WITHIN_S
        may_end.set()
        assert a.rpc_sync(1, echo) == [(), {}]
        may_end.clear()
        with pytest.raises(TimeoutError, match="the fetch of RRef"):
            a.remote(1, hold_up).to_here(timeout=0.05)
        may_end.set()


def test_many_threads_call_in_both_directions() -> None:
    """FT-6: no answer is lost, whoever waits for it and whoever receives it."""
    with endpoints(3) as ends:

        def call_all(rank: int, turn: int) -> None:
            for i in range(20):
                to = (rank + 1 + i) % 3
                tensor = torch.full((turn + 1, 9000), float(100 * rank + i))
                expected = [(rank, i, tensor), {}]
                found = ends[rank].rpc_async(to, echo, (rank, i, tensor)).wait()
                assert found[0][:2] == expected[0][:2]  # type: ignore[index]
                assert same(found[0][2], tensor)

        run_threads([partial(call_all, r, t) for r in range(3) for t in range(4)])
        futures = [ends[0].rpc_async(1, echo, (i,)) for i in range(300)]
        assert [f.wait()[0][0] for f in futures] == list(range(300))
        doubled = futures[7].then(lambda f: 2 * f.wait()[0][0])
        assert doubled.wait() == 14


def test_ranks_that_call_each_other_do_not_run_out_of_threads() -> None:
    with endpoints(2, threads=1) as (a, _):
        assert a.rpc_sync(1, bounce, (30, 1, 0)) == 30
        assert a.rpc_sync(0, bounce, (5, 0, 0)) == 5


def num_values(ends: list[Endpoint]) -> list[int]:
    return [e._exchange.references.num_owned() for e in ends]


@rpc.register
def keep(name: str, rref: rpc.RRef) -> None:
    kept[name] = rref


@rpc.register
def give_back(name: str) -> rpc.RRef:
    return kept.pop(name)


@rpc.register
def append(rref: rpc.RRef, value: object) -> int:
    """Works on the owner's own value, which cannot be sent."""
    rref.local_value().append(value)
    return len(rref.local_value())


@rpc.register
def new_list() -> list[object]:
    return []


kept: dict[str, rpc.RRef] = {}


def test_a_value_stays_with_its_owner_until_the_last_reference_is_gone() -> None:
    with endpoints(3) as ends:
        a, b, c = ends
        rref = a.remote(1, new_list)
        assert (rref.owner(), rref.owner_name()) == (1, "worker1")
        assert not rref.is_owner()
        assert a.rpc_sync(1, append, (rref, "x")) == 1
        assert a.rpc_sync(1, append, (rref, "y")) == 2
        assert rref.to_here() == ["x", "y"]
        with pytest.raises(ConfigError, match="kept by rank 1"):
            rref.local_value()
        a.rpc_sync(2, keep, ("it", rref))  # rank 2 holds it, too
        del rref
        assert soon(lambda: a._exchange.references.num_lent() == 0)
        assert num_values(ends) == [0, 1, 0]
        assert kept["it"].to_here() == ["x", "y"]
        back = b.rpc_sync(2, give_back, ("it",))  # to the owner itself
        assert back.is_owner()
        assert back.to_here() is back.local_value()
        del back
        assert soon(lambda: num_values(ends) == [0, 0, 0])

        mine = c.rref(torch.arange(5))
        held = c.remote(0, keep, ("mine", mine))
        assert held.to_here() is None
        del mine
        gc.collect()
        assert same(kept["mine"].to_here(), torch.arange(5))
        kept.clear()
        del held
        assert soon(lambda: num_values(ends) == [0, 0, 0])
        assert soon(lambda: not any(e._exchange.references.num_lent() for e in ends))


def test_a_large_call_can_be_fetched_and_passed_on_before_it_has_arrived() -> None:
    """The call takes another link than the messages about its reference."""
    with endpoints(3) as ends:
        big = torch.randn(1_000_003)
        for _ in range(5):
            rref = ends[0].remote(1, double, (big,))
            passed = ends[0].rpc_async(2, echo, (rref,))
            assert same(rref.to_here(), 2 * big)
            del rref
            found = passed.wait()[0][0]
            assert same(found.to_here(), 2 * big)
            del found, passed
        assert soon(lambda: num_values(ends) == [0, 0, 0])


def test_errors_of_references_are_raised_where_they_are_fetched() -> None:
    with endpoints(2) as (a, b):
        for rref in (a.remote(1, fail, ("k",)), a.remote(0, fail, ("k",))):
            with pytest.raises(rpc.RemoteError, match="KeyError: 'k'"):
                rref.to_here()
        with pytest.raises(PeerRefused, match="no function"):
            a.remote(1, "nothing").to_here()
        del rref
        gone = a.rref(5).reference
        assert soon(lambda: num_values([a]) == [0])
        with pytest.raises(PeerRefused, match=r"rank 0: the value of RRef .* is gone"):
            b.fetch(gone, None)
        with pytest.raises(PeerRefused, match="is gone"):
            a.fetch(gone, None)
        other = b.rref(6)
        with pytest.raises(ConfigError, match="belongs to another endpoint"):
            a.rpc_sync(1, echo, (other,))


def test_ranks_end_in_any_order_and_serve_each_other_until_then() -> None:
    may_end.clear()
    with endpoints(3) as (a, b, c):
        pending = b.rpc_async(0, hold_up)
        assert running.acquire(timeout=WITHIN_S)
        ended = [threading.Thread(target=e.shutdown) for e in (a, c)]
        for thread in ended:
            thread.start()
        assert soon(lambda: b._exchange.peers[2].is_done)
        assert b.rpc_sync(2, echo, (1,)) == [(1,), {}], "it is served to the end"
        may_end.set()
        assert pending.wait() == "ended"
        b.shutdown()
        b.shutdown()
        for thread in ended:
            thread.join(WITHIN_S)
            assert not thread.is_alive()
        for each in (a, b, c):
            with pytest.raises(GroupAborted, match="shutdown"):
                each.rpc_sync(0, echo)


def test_an_end_goes_on_when_the_last_answer_has_come() -> None:
    """No message follows that answer which could wake the waiting thread instead."""
    may_end.clear()
    with endpoints(2) as (a, b):
        pending = a.rpc_async(1, hold_up)
        assert running.acquire(timeout=WITHIN_S)
        ending = threading.Thread(target=partial(a.shutdown, timeout=None))
        ending.start()
        assert soon(lambda: a._exchange.watch._ready is not None)
        may_end.set()
        assert soon(lambda: b._exchange.peers[0].is_done)
        assert pending.wait() == "ended"
        b.shutdown()
        ending.join(WITHIN_S)
        assert not ending.is_alive()


def test_shutdown_names_who_is_missing_and_ends_anyway() -> None:
    with endpoints(2) as (a, b):
        with pytest.raises(DeadlineExceeded, match=r"rank 1 did not call it, too"):
            a.shutdown(timeout=0.1)
        a.shutdown()
        with pytest.raises(PeerLost, match="rank 0: has shut down its RPC"):
            b.rpc_sync(0, echo)
        b.shutdown()


def test_a_rank_that_ends_at_once_fails_the_calls_that_wait_for_it() -> None:
    may_end.clear()
    with endpoints(2) as (a, b):
        pending = a.rpc_async(1, hold_up)
        assert running.acquire(timeout=WITHIN_S)
        with end_the_call_when(pending.done):
            b.shutdown(graceful=False)
        with pytest.raises(PeerLost, match=r"shut down its RPC, before .* 'hold_up'"):
            pending.wait()


@rpc.register
def wait_and_call(to: int) -> None:
    """A function whose call the others must still serve."""
    running.release()
    assert may_end.wait(WITHIN_S)
    kept_results.append(at[1].rpc_sync(to, echo, (1,)))


@rpc.register
def take_in(tensor: Tensor) -> None:
    kept_results.append(float(tensor[-1]))


kept_results: list[object] = []


def test_the_end_waits_for_functions_whose_result_nobody_fetched() -> None:
    """``remote`` without ``to_here``, also if its arguments are still on their way."""
    may_end.clear()
    kept_results.clear()
    with endpoints(3) as (a, b, c):
        a.remote(1, wait_and_call, (2,))
        a.remote(2, take_in, (torch.arange(5_000_001.0),))
        assert running.acquire(timeout=WITHIN_S)
        ended = [threading.Thread(target=e.shutdown) for e in (a, b, c)]
        for thread in ended:
            thread.start()
        assert soon(lambda: b._exchange.peers[2].is_done)
        may_end.set()
        for thread in ended:
            thread.join(WITHIN_S)
    assert sorted(kept_results, key=str) == [5_000_000.0, [(1,), {}]]


def test_errors_keep_nothing_of_the_calls_that_raised_them() -> None:
    """A rank that is lost, or an end, is reported many times."""
    with endpoints(2) as (a, b):
        sent: list[weakref.ref[Tensor]] = []

        def call() -> None:
            tensor = torch.zeros(3)
            sent.append(weakref.ref(tensor))
            with contextlib.suppress(PeerLost, GroupAborted, rpc.RemoteError):
                a.rpc_sync(1, fail, (tensor,))

        gc.collect()
        gc.disable()
        try:
            call()
            b.shutdown(graceful=False)
            assert soon_without_gc(lambda: a._exchange.peers[1].lost is not None)
            call()
            call()
            a.shutdown(graceful=False)
            call()
            call()
            assert soon_without_gc(lambda: [ref() for ref in sent] == [None] * 5)
        finally:
            gc.enable()


def soon_without_gc(is_true: Callable[[], bool]) -> bool:
    deadline = Deadline.after(WITHIN_S)
    while not is_true() and not deadline.is_over():
        time.sleep(0.005)
    return is_true()


def test_references_for_a_lost_rank_are_not_kept() -> None:
    with endpoints(3) as (a, b, c):
        rref = a.remote(1, new_list)
        assert rref.to_here() == []
        c.shutdown(graceful=False)
        assert soon(lambda: a._exchange.peers[2].lost is not None)
        with pytest.raises(PeerLost, match="rank 2"):
            a.rpc_sync(2, echo, (rref,))
        del rref
        assert soon(lambda: num_values([b]) == [0])
        assert soon(lambda: a._exchange.references.num_lent() == 0)


def test_a_copy_of_a_reference_is_the_reference() -> None:
    with endpoints(2) as ends:
        rref = ends[0].remote(1, new_list)
        copies = [copy.copy(rref), copy.deepcopy({"it": rref})["it"]]
        assert all(each is rref for each in copies)
        with pytest.raises(ConfigError, match="cannot be pickled; send it as an"):
            pickle.dumps(rref)
        del copies
        assert ends[0].rpc_sync(1, append, (rref, 1)) == 1


def test_an_end_without_a_thread_that_serves_does_not_wait() -> None:
    """A defect of ours ends the thread while ``shutdown`` waits, without a limit."""
    with endpoints(2) as (a, b):
        ending = threading.Thread(target=partial(a.shutdown, timeout=None))
        ending.start()
        assert soon(lambda: b._exchange.peers[0].is_done)
        a._exchange._dropped.append(None)  # type: ignore[arg-type]
        a._exchange.wake()
        ending.join(WITHIN_S)
        assert not ending.is_alive()


def test_an_end_wakes_who_waits_for_a_value_of_this_rank() -> None:
    may_end.clear()
    with endpoints(2) as (a, _), ThreadPoolExecutor(1) as threads:
        rref = a.remote(0, hold_up)
        waiting = threads.submit(rref.local_value)
        owned = a._exchange.references.find(rref.reference)
        assert owned is not None
        assert soon(lambda: bool(owned.waiting))
        with end_the_call_when(lambda: a._exchange.failure is not None):
            a._exchange.close()
        with pytest.raises(GroupAborted, match="shutdown"):
            waiting.result(WITHIN_S / 2)


# -- processes -----------------------------------------------------------------------


def call_and_lose(group: Group, ready: Ready) -> list[object]:
    """Rank 0 calls the others; rank 2 is killed meanwhile."""
    rpc.start(group, timeout=WITHIN_S)
    results: list[object] = []
    if group.rank == 0:
        tensor = torch.randn(300_001)
        assert same(rpc.rpc_sync(1, double, (tensor,)), 2 * tensor)
        rref = rpc.remote(2, new_list)
        assert rpc.rpc_sync("worker2", append, (rref, 1)) == 1
        pending = [rpc.rpc_async(2, hold_up) for _ in range(5)]
        ready()
        results += [future.exception() for future in pending]
        for call in (partial(rpc.rpc_sync, 2, echo), rref.to_here):
            try:
                call()
            except PeerLost as exc:
                results.append(exc)
        assert rpc.rpc_sync(1, echo, (7,)) == [(7,), {}], "the others go on"
    else:
        ready()
    rpc.shutdown(timeout=WITHIN_S)
    rpc.shutdown()
    return results


@pytest.mark.parametrize("transport", ["tcp", "shm"])
def test_a_killed_callee_fails_the_pending_calls_at_once(
    transport: str, fork_server: ForkServer
) -> None:
    with spawn_ranks(
        3, call_and_lose, transport=transport, fork_server=fork_server
    ) as ranks:
        for rank in ranks:
            rank.wait_ready(within_s=WITHIN_S)
        killed_s = ranks[2].kill()
        errors = ranks[0].result(within_s=WITHIN_S)
        assert ranks[0].ended_at_s - killed_s < WITHIN_S / 2, "not by its deadline"
        assert ranks[1].result(within_s=WITHIN_S) == []
    assert len(errors) == 7
    for error in errors:
        assert isinstance(error, PeerLost), error
        assert error.peer == 2
        # It had called shutdown(), as one that only serves does at once.
        assert "shut down" not in str(error), "it was lost while it served"
    assert "before it answered the call of 'hold_up'" in str(errors[0])
