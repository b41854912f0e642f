"""Staging through host memory, on the simulated device of kit/fake_accelerator.py."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

import pytest
import torch
from torch import Tensor
from torch._C._distributed_c10d import HashStore

from ringleader.backend import staging
from ringleader.backend.device import MpsDevice, device_of
from ringleader.backend.host_run import run_on_host
from ringleader.backend.process_group import RingleaderGroup
from ringleader.backend.rank_facts import RankFacts, check_host_staging
from ringleader.backend.staging import HostStaging
from ringleader.errors import ConfigError, GroupAborted, InternalError, RingleaderError
from ringleader.groups.group import Group
from ringleader.groups.work import DONE, Work
from ringleader.testing.threaded_world import run_threads, run_world, world
from tests.kit.fake_accelerator import PACES, Accelerator

T = TypeVar("T")

SLOT_BYTES = 2048
"""Small, so that a thousand numbers are several chunks."""
STALE = -77.0
"""The value of memory before it is computed."""


@pytest.fixture(autouse=True)
def small_slots(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(staging, "SLOT_BYTES", SLOT_BYTES)


class Rank:
    """A rank with a simulated accelerator and its staging."""

    def __init__(self, group: Group, pace: str = "late") -> None:
        self.group = group
        self.device = Accelerator(pace, seed=group.rank)
        self.stage = HostStaging(self.device)
        self.num_chunks = 0

    def start(
        self,
        ins: Sequence[Tensor],
        outs: Sequence[Tensor],
        body: staging.Body,
        width: int = 1,
    ) -> Callable[[], None]:
        """Start an operation; return a function that waits as torch's users do."""
        work, deliver = self.stage.run(
            self.group, ins, outs, body, width, async_op=True
        )

        def wait() -> None:
            work.wait(120)
            deliver()

        return wait

    def all_reduce(self, tensor: Tensor) -> Callable[[], None]:
        return self.start(
            [tensor], [tensor], lambda _, outs: self.group.all_reduce(outs[0])
        )

    def broadcast(self, tensor: Tensor, root: int) -> Callable[[], None]:
        ins, outs = ([tensor], []) if self.group.rank == root else ([], [tensor])

        def body(ins: list[Tensor], outs: list[Tensor]) -> Work:
            self.num_chunks += 1
            return self.group.broadcast((ins or outs)[0], root)

        return self.start(ins, outs, body)

    def all_gather(self, outs: list[Tensor], source: Tensor) -> Callable[[], None]:
        width = self.group.size + 1
        return self.start(
            [source], outs, lambda i, o: self.group.all_gather(o, i[0]), width
        )

    def computed(self, values: Tensor, home: Tensor | None = None) -> Tensor:
        """Return a tensor (or ``home``) that a pending kernel of the user will fill."""
        tensor = torch.zeros_like(values) if home is None else home
        self.device.compute(lambda: tensor.copy_(values))
        return tensor


def staged(size: int, body: Callable[[Rank], T], pace: str = "late") -> list[T]:
    """Run ``body`` on every rank; check that no memory was used without permission."""

    def live(group: Group) -> T:
        rank = Rank(group, pace)
        result = body(rank)
        assert rank.device.mistakes == []
        return result

    return run_world(size, live)


def numbers(count: int, rank: int, turn: int = 0) -> Tensor:
    """Return integers that differ by index, rank and turn; their sums are exact."""
    return torch.arange(count, dtype=torch.float32) * 3 + rank * 1000 + turn * 7


def total(count: int, size: int, turn: int = 0) -> Tensor:
    return torch.stack([numbers(count, r, turn) for r in range(size)]).sum(0)


# -- the simulation itself ---------------------------------------------------------


def test_a_simulated_copy_happens_when_it_is_waited_for_and_not_before() -> None:
    device = Accelerator()
    source, host = torch.ones(4), device.host_buffer(16).view(torch.float32)
    with device.d2h_stream():
        device.record_stream(source)
        host.copy_(source, non_blocking=True)
        copied = device.record_event()
    assert host.tolist() != [1.0] * 4
    with device.h2d_stream():
        device.wait_event(copied)
        after = device.record_event()
    after.synchronize()
    assert host.tolist() == [1.0] * 4
    assert device.mistakes == []


def test_the_simulation_notices_memory_that_is_used_without_right() -> None:
    device = Accelerator()
    source, host = torch.ones(4), device.host_buffer(16).view(torch.float32)
    with device.d2h_stream():
        host.copy_(source)
        copied = device.record_event()
    del host
    copied.synchronize()
    assert device.mistakes == [
        "out uses [4] and never said so",
        "out copies host memory that was freed",
    ]


# -- values ------------------------------------------------------------------------


@pytest.mark.parametrize("pace", PACES)
@pytest.mark.parametrize("count", [1, 512, 513, 3 * 512, 7 * 512 + 13])
def test_all_reduce_takes_every_chunk_through_the_host(count: int, pace: str) -> None:
    def body(rank: Rank) -> Tensor:
        tensor = rank.computed(numbers(count, rank.group.rank))
        rank.all_reduce(tensor)()
        return rank.device.read(tensor)

    for seen in staged(3, body, pace):
        assert torch.equal(seen, total(count, 3))


@pytest.mark.parametrize("pace", PACES)
@pytest.mark.parametrize("root", [0, 1])
def test_broadcast_copies_out_on_one_side_and_in_on_the_other(
    root: int, pace: str
) -> None:
    count = 5 * 512 + 1

    def body(rank: Rank) -> Tensor:
        tensor = rank.computed(numbers(count, rank.group.rank))
        rank.broadcast(tensor, root)()
        seen = rank.device.read(tensor)
        assert rank.num_chunks > staging.NUM_SLOTS
        assert rank.device.num_copies == rank.num_chunks, "in one direction each"
        return seen

    for seen in staged(2, body, pace):
        assert torch.equal(seen, numbers(count, root))


@pytest.mark.parametrize("pace", PACES)
def test_all_gather_fills_one_tensor_per_rank(pace: str) -> None:
    count = 700  # chunks of 128: a slot is shared by four tensors

    def body(rank: Rank) -> list[Tensor]:
        source = rank.computed(numbers(count, rank.group.rank))
        outs = [rank.computed(torch.zeros(count)) for _ in range(3)]
        rank.all_gather(outs, source)()
        return [rank.device.read(out) for out in (*outs, source)]

    for r, seen in enumerate(staged(3, body, pace)):
        want = [numbers(count, 0), numbers(count, 1), numbers(count, 2)]
        for got, wanted in zip(seen, [*want, numbers(count, r)], strict=True):
            assert torch.equal(got, wanted)


@pytest.mark.parametrize("pace", PACES)
def test_all_gather_in_place_sends_from_its_own_row(pace: str) -> None:
    """FSDP: the input is a part of the output, as another tensor object."""
    count = 700

    def body(rank: Rank) -> Tensor:
        whole = torch.full((3, count), STALE)
        mine = whole[rank.group.rank]
        rank.computed(numbers(count, rank.group.rank), mine)
        rank.all_gather(list(whole.unbind()), mine)()
        return rank.device.read(whole)

    for seen in staged(3, body, pace):
        assert torch.equal(seen, torch.stack([numbers(count, r) for r in range(3)]))


def test_tensors_of_unequal_length_travel_in_one_piece() -> None:
    """Larger than a slot: the slots grow."""
    lengths = [SLOT_BYTES, 3, 0]

    def body(rank: Rank) -> list[Tensor]:
        source = rank.computed(numbers(lengths[rank.group.rank], rank.group.rank))
        outs = [torch.full((n,), STALE) for n in lengths]
        rank.all_gather(outs, source)()
        return [rank.device.read(out) for out in outs]

    for seen in staged(3, body):
        for r, got in enumerate(seen):
            assert torch.equal(got, numbers(lengths[r], r))


@pytest.mark.parametrize("shape", [(0,), (3, 0)])
def test_tensors_of_no_size_still_meet_the_others(shape: tuple[int, ...]) -> None:
    """The operation is run, because the ranks' calls must match."""
    calls: list[int] = []

    def body(rank: Rank) -> Tensor:
        empty, rest = torch.empty(shape), rank.computed(numbers(5, rank.group.rank))

        def reduce(_: list[Tensor], outs: list[Tensor]) -> object:
            calls.append(outs[0].numel())
            return rank.group.all_reduce(outs[0])

        waits = [rank.start([empty], [empty], reduce), rank.all_reduce(rest)]
        for wait in waits:
            wait()
        return rank.device.read(rest)

    for seen in staged(2, body):
        assert torch.equal(seen, total(5, 2))
    assert calls == [0, 0], "once on each rank"


@pytest.mark.parametrize("pace", PACES)
@pytest.mark.parametrize("dtype", [torch.float64, torch.int64, torch.uint8])
def test_every_width_of_element_has_its_place(dtype: torch.dtype, pace: str) -> None:
    values = torch.arange(2 * SLOT_BYTES + 5) % 60

    def body(rank: Rank) -> Tensor:
        tensor = rank.computed((values + rank.group.rank).to(dtype))
        rank.all_reduce(tensor)()
        return rank.device.read(tensor)

    for seen in staged(2, body, pace):
        assert torch.equal(seen, (2 * values + 1).to(dtype))


# -- tensors whose elements do not lie in a row ------------------------------------


def every_other(values: Tensor) -> Tensor:
    """Return a tensor like ``values`` with gaps between its elements."""
    return torch.full((*values.shape, 2), STALE)[..., 0]


@pytest.mark.parametrize("pace", PACES)
def test_a_tensor_with_gaps_gets_its_result_and_its_gaps_stay(pace: str) -> None:
    count = 3 * 512 + 5

    def body(rank: Rank) -> tuple[Tensor, Tensor]:
        whole = torch.full((count, 2), STALE)
        tensor = rank.computed(numbers(count, rank.group.rank), whole[:, 0])
        rank.all_reduce(tensor)()
        seen = rank.device.read(whole)
        return seen[:, 0], seen[:, 1]

    for seen, gaps in staged(2, body, pace):
        assert torch.equal(seen, total(count, 2))
        assert torch.equal(gaps, torch.full((count,), STALE))


@pytest.mark.parametrize("pace", PACES)
def test_a_transposed_tensor_is_read_and_not_written_by_the_sender(pace: str) -> None:
    def body(rank: Rank) -> Tensor:
        values = numbers(40 * 30, rank.group.rank).view(40, 30)
        tensor = rank.computed(values, torch.full((30, 40), STALE).t())
        rank.broadcast(tensor, 0)()
        return rank.device.read(tensor)

    for seen in staged(2, body, pace):
        assert torch.equal(seen, numbers(40 * 30, 0).view(40, 30))


def test_a_tensor_with_gaps_is_kept_until_the_copies_are_through() -> None:
    def body(rank: Rank) -> None:
        home = every_other(numbers(10, 0))
        rank.all_reduce(rank.computed(numbers(10, rank.group.rank), home))()

    staged(2, body)


# -- several operations ------------------------------------------------------------


@pytest.mark.parametrize("pace", PACES)
def test_operations_in_a_row_do_not_disturb_each_other(pace: str) -> None:
    """All are started before any is waited for; they share the same slots."""
    count, num_turns = 4 * 512 + 3, 5

    def body(rank: Rank) -> list[Tensor]:
        turns = range(num_turns)
        tensors = [rank.computed(numbers(count, rank.group.rank, t)) for t in turns]
        waits = [rank.all_reduce(tensor) for tensor in tensors]
        for wait in reversed(waits):
            wait()
        return [rank.device.read(tensor) for tensor in tensors]

    for seen in staged(2, body, pace):
        for turn, got in enumerate(seen):
            assert torch.equal(got, total(count, 2, turn))


@pytest.mark.parametrize("pace", PACES)
def test_an_operation_begins_where_the_one_before_has_ended(pace: str) -> None:
    """Each reads the result of the previous one, and only the last is waited for."""
    count, num_turns = 2 * 512 + 1, 4

    def body(rank: Rank) -> Tensor:
        tensor = rank.computed(numbers(count, rank.group.rank))
        for _ in range(num_turns - 1):
            rank.all_reduce(tensor)
        rank.all_reduce(tensor)()
        return rank.device.read(tensor)

    for seen in staged(2, body, pace):
        assert torch.equal(seen, total(count, 2) * 2 ** (num_turns - 1))


@pytest.mark.parametrize("pace", PACES)
def test_what_only_receives_spares_the_slots_of_the_one_before(pace: str) -> None:
    """The host itself fills a slot, without a copy from the device to wait for."""
    count, num_turns = 2 * 512, 4

    def body(rank: Rank) -> list[Tensor]:
        turns = range(num_turns)
        tensors = [rank.computed(numbers(count, rank.group.rank, t)) for t in turns]
        waits = [rank.broadcast(tensor, 0) for tensor in tensors]
        for wait in waits:
            wait()
        return [rank.device.read(tensor) for tensor in tensors]

    for seen in staged(2, body, pace):
        for turn, got in enumerate(seen):
            assert torch.equal(got, numbers(count, 0, turn))


def test_operations_of_one_size_use_the_same_host_memory() -> None:
    def body(rank: Rank) -> list[int]:
        rooms = []
        for turn in range(3):
            tensor = rank.computed(numbers(9 * 512, rank.group.rank, turn))
            rank.all_reduce(tensor)()
            rooms.append(rank.device.host_rooms())
        return rooms

    for first, *later in staged(2, body):
        assert first >= staging.NUM_SLOTS
        assert later == [first] * 2


def test_a_slot_that_grows_is_kept_until_it_has_been_copied_in() -> None:
    """Pinned memory of CUDA survives this; that of Apple's GPU is plain memory."""

    def body(rank: Rank) -> list[Tensor]:
        sizes = (10, 400)
        tensors = [rank.computed(numbers(n, rank.group.rank)) for n in sizes]
        for wait in [rank.all_reduce(tensor) for tensor in tensors]:
            wait()
        return [rank.device.read(tensor) for tensor in tensors]

    for small, large in staged(2, body):
        assert torch.equal(small, total(10, 2))
        assert torch.equal(large, total(400, 2))


# -- what differs from rank to rank ------------------------------------------------


def test_the_root_of_a_gather_cuts_as_the_others_do() -> None:
    """It has three tensors and the others have one; all must make the same calls."""
    count = 512

    def body(rank: Rank) -> list[Tensor]:
        group, is_root = rank.group, rank.group.rank == 0
        source = rank.computed(numbers(count, group.rank))
        outs = [torch.full((count,), STALE) for _ in range(2 if is_root else 0)]
        rank.start(
            [source],
            outs,
            lambda i, o: group.gather(o if is_root else None, i[0], 0),
            width=0,
        )()
        return [rank.device.read(out) for out in outs]

    root, _ = staged(2, body)
    for r, seen in enumerate(root):
        assert torch.equal(seen, numbers(count, r))


def test_all_to_all_with_equal_parts_here_and_unequal_ones_there() -> None:
    """Rank 1 keeps little for itself; the parts between the two are equal."""
    parts = {(0, 0): 512, (0, 1): 512, (1, 0): 512, (1, 1): 3}

    def body(rank: Rank) -> list[Tensor]:
        me = rank.group.rank
        ins = [rank.computed(numbers(parts[me, r], me, r)) for r in range(2)]
        outs = [torch.full((parts[r, me],), STALE) for r in range(2)]
        rank.start(ins, outs, lambda i, o: rank.group.all_to_all(o, i), width=0)()
        return [rank.device.read(out) for out in outs]

    for me, seen in enumerate(staged(2, body)):
        for r, got in enumerate(seen):
            assert torch.equal(got, numbers(parts[r, me], r, me))


@pytest.mark.parametrize("count", [0, 7, 512, 2000, 2001])
def test_a_rank_on_the_host_cuts_as_one_on_a_device_does(count: int) -> None:
    def body(rank: Rank) -> tuple[Tensor, list[Tensor]]:
        group, width = rank.group, rank.group.size + 1
        mine = numbers(count, group.rank)
        outs = [torch.full((count,), STALE) for _ in range(2)]
        if group.rank == 1:
            run_on_host(
                group, [mine], outs, lambda i, o: group.all_gather(o, i[0]), width
            )
            run_on_host(
                group, [mine], [mine], lambda _, o, **how: group.all_reduce(o[0]), 1
            )
            return mine, outs
        rank.all_gather(outs, rank.computed(mine))()
        rank.all_reduce(tensor := rank.computed(mine))()
        return rank.device.read(tensor), [rank.device.read(out) for out in outs]

    for summed, gathered in staged(2, body):
        assert torch.equal(summed, total(count, 2))
        for r, each in enumerate(gathered):
            assert torch.equal(each, numbers(count, r))


def test_a_tensor_with_gaps_on_the_host_is_cut_and_filled() -> None:
    def body(rank: Rank) -> Tensor:
        group, values = rank.group, numbers(2000, rank.group.rank)
        home = every_other(values).copy_(values)
        run_on_host(
            group, [home], [home], lambda _, o, **how: group.all_reduce(o[0]), 1
        )
        return home

    for seen in staged(2, body):
        assert torch.equal(seen, total(2000, 2))


# -- the end -----------------------------------------------------------------------


class Mishap(Exception):
    """An error between two chunks."""


def test_an_exception_between_two_chunks_breaks_the_group_for_all() -> None:
    def body(rank: Rank) -> tuple[BaseException, BaseException]:
        turns = iter(range(10))

        def reduce(_: list[Tensor], outs: list[Tensor]) -> Work:
            if rank.group.rank == 1 and next(turns) == 2:
                raise Mishap("the third chunk")
            return rank.group.all_reduce(outs[0])

        tensor = rank.computed(numbers(5 * 512, rank.group.rank))
        with pytest.raises((Mishap, RingleaderError)) as first:
            rank.start([tensor], [tensor], reduce)()
        with pytest.raises(RingleaderError) as later:
            rank.all_reduce(tensor)()
        return first.value, later.value

    (here, again), (there, later) = staged(2, body)
    assert isinstance(there, Mishap)
    assert isinstance(later, InternalError)
    assert "the third chunk" in str(later)
    for error in (here, again):
        assert isinstance(error, RingleaderError)
        assert str(error) == "rank 1: Mishap: the third chunk"


def test_an_operation_that_failed_never_orders_the_caller() -> None:
    with world(2) as (group, _):
        rank = Rank(group)
        tensor = rank.computed(numbers(5, 0))
        work, deliver = rank.stage.run(
            group,
            [tensor],
            [tensor],
            lambda _, outs: group.all_reduce(outs[0]),
            1,
            async_op=True,
        )
        group.abort("enough")
        with pytest.raises(GroupAborted, match="enough"):
            work.wait(60)
        with pytest.raises(IndexError):
            deliver()


def test_a_synchronous_operation_has_ended_when_the_call_returns() -> None:
    def body(rank: Rank) -> tuple[bool, Tensor]:
        tensor = rank.computed(numbers(2000, rank.group.rank))
        work, deliver = rank.stage.run(
            rank.group,
            [tensor],
            [tensor],
            lambda _, outs: rank.group.all_reduce(outs[0]),
            1,
            timeout_s=60,
            async_op=False,
        )
        deliver()
        return work is DONE, rank.device.read(tensor)

    for is_done, seen in staged(2, body):
        assert is_done
        assert torch.equal(seen, total(2000, 2))


@pytest.mark.parametrize("has_gaps", [False, True])
def test_gradients_are_not_traced_through_a_copy(has_gaps: bool) -> None:
    """torch forbids in-place changes of a leaf outside no_grad."""

    def body(rank: Rank) -> Tensor:
        values = numbers(600, rank.group.rank)
        leaf = (every_other(values).copy_(values) if has_gaps else values).detach()
        rank.all_reduce(leaf.requires_grad_())()
        assert leaf.grad_fn is None
        return rank.device.read(leaf.detach())

    for seen in staged(2, body):
        assert torch.equal(seen, total(600, 2))


# -- the devices there are ---------------------------------------------------------


class StandInEvent:
    """The part of torch.mps.Event that we use."""

    log: list[str]

    def record(self) -> None:
        self.log.append("record")

    def synchronize(self) -> None:
        self.log.append("synchronize")


@pytest.fixture
def mps_log(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    monkeypatch.setattr(StandInEvent, "log", [], raising=False)
    monkeypatch.setattr(torch.mps, "Event", StandInEvent)
    return StandInEvent.log


def test_apples_queue_is_marked_by_an_event_that_was_recorded(
    mps_log: list[str],
) -> None:
    device = device_of(torch.device("mps"))
    assert isinstance(device, MpsDevice)
    event = device.record_event()
    assert mps_log == ["record"], "an event that was never recorded is waited for never"
    device.wait_event(event)
    assert mps_log == ["record"], "one queue is always in order"
    event.synchronize()
    assert mps_log == ["record", "synchronize"]


def test_a_whole_operation_with_the_parts_of_apples_device(mps_log: list[str]) -> None:
    """Its tensors are host tensors: the test checks the protocol only."""

    num_chunks = 0

    def body(group: Group) -> Tensor:
        def reduce(_: list[Tensor], outs: list[Tensor]) -> Work:
            nonlocal num_chunks
            num_chunks += 1
            return group.all_reduce(outs[0])

        device = device_of(torch.device("mps"))
        with device.guard(), device.d2h_stream(), device.h2d_stream():
            device.record_stream(torch.ones(1))
        tensor = numbers(1500, group.rank)
        work, deliver = HostStaging(device).run(group, [tensor], [tensor], reduce, 1)
        work.wait()
        deliver()
        return tensor

    for seen in run_world(2, body):
        assert torch.equal(seen, total(1500, 2))
    assert num_chunks > 2
    assert mps_log.count("synchronize") == num_chunks, "the host waits for each"


def test_apples_host_memory_is_plain_bytes_of_the_host() -> None:
    memory = MpsDevice().host_buffer(100)
    assert (memory.dtype, memory.numel()) == (torch.uint8, 100)
    assert memory.is_cpu


@pytest.mark.parametrize("name", ["meta", "xpu", "cpu"])
def test_a_device_nobody_can_stage_is_named_with_the_way_out(name: str) -> None:
    with pytest.raises(ConfigError, match=rf"on {name} .*move them to cpu"):
        device_of(torch.device(name))


def test_two_stages_in_two_threads_stay_apart() -> None:
    """Two groups of the same two ranks, each with its own staging and threads."""
    with world(2) as first, world(2) as second:

        def drive(group: Group, turn: int) -> Tensor:
            rank = Rank(group, "mixed")
            tensors = [rank.computed(numbers(2000, group.rank, turn)) for _ in range(3)]
            for wait in [rank.all_reduce(tensor) for tensor in tensors]:
                wait()
            return torch.stack([rank.device.read(tensor) for tensor in tensors])

        jobs = [
            (g, turn) for turn, groups in enumerate((first, second)) for g in groups
        ]
        seen = run_threads([lambda j=j: drive(*j) for j in jobs])  # type: ignore[misc]
    for (_, turn), got in zip(jobs, seen, strict=True):
        assert torch.equal(got, total(2000, 2, turn).expand(3, -1))


# -- the switch that refuses it ----------------------------------------------------


def test_a_user_may_refuse_host_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """What needs it is an error on every rank; what does not is done as ever."""
    monkeypatch.setenv("RINGLEADER_HOST_STAGING", "0")

    def live(rank: Rank) -> None:
        tensor = rank.computed(numbers(100, rank.group.rank))
        with pytest.raises(ConfigError, match="RINGLEADER_HOST_STAGING=0"):
            rank.all_reduce(tensor)
        work, deliver = rank.stage.run(
            rank.group,
            [tensor],
            [tensor],
            lambda *_: pytest.fail("it was staged"),
            1,
            attempt=lambda device, _ready: device.record_event(),
        )
        work.wait(120)
        deliver()
        with pytest.raises(ConfigError, match="RINGLEADER_HOST_STAGING=0"):
            rank.stage.run(
                rank.group,
                [tensor],
                [tensor],
                lambda *_: pytest.fail("it was staged"),
                1,
                attempt=lambda *_: None,
            )

    staged(2, live)


def test_ranks_that_differ_in_the_switch_are_told_apart() -> None:
    facts = [
        RankFacts(True, "2.13.0", "oak", has_cuda=True),
        RankFacts(True, "2.13.0", "elm", has_cuda=True, stages_on_host=False),
    ]
    assert [RankFacts.decode(each.encode()) for each in facts] == facts
    with pytest.raises(ConfigError, match=r"0 on rank 1 \(elm\) and not on rank 0"):
        check_host_staging(facts)
    with pytest.raises(ConfigError, match=r"0 on rank 0 \(elm\) and not on rank 1"):
        check_host_staging(facts[::-1])
    check_host_staging(facts[:1] * 2)


def test_copies_outside_of_staging_are_refused_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A tensor on "meta" stands for one of an accelerator."""
    monkeypatch.setenv("RINGLEADER_HOST_STAGING", "0")

    def live(group: Group) -> None:
        ours = RingleaderGroup(group, HashStore(), [0, 1], is_staged=True)
        there, peer = torch.empty(4, device="meta"), 1 - group.rank
        sparse = torch.empty(4, 4, device="meta", layout=torch.sparse_coo)
        with pytest.raises(ConfigError, match="send of a tensor on meta would"):
            ours.send([there], peer)
        with pytest.raises(ConfigError, match="recv of a tensor on meta would"):
            ours.recv([there], peer)
        work = ours.allreduce([sparse])
        assert work is not None
        with pytest.raises(ConfigError, match="all_reduce of a tensor on meta would"):
            work.wait()

    run_world(2, live)
