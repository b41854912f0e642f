"""Sparse all_reduce over real links inside one process."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

import numpy as np
import pytest
import torch
from torch import Tensor

from ringleader.compression import sparse_all_reduce, sparse_cost
from ringleader.compression.communicator import (
    Communicator,
    GroupCommunicator,
    all_gather_ints,
)
from ringleader.compression.sparse_all_reduce import MILLION, SparseAllReduce
from ringleader.compression.sparse_cost import SparseAlgorithm
from ringleader.compression.sparse_format import BLOCK, SparseVector, pack
from ringleader.errors import ProtocolError, RingleaderError
from ringleader.groups.group import Group, handle_of
from ringleader.testing.threaded_world import run_world

SOON_S = 120.0
WAYS = [SparseAlgorithm.ALL_GATHER, SparseAlgorithm.REDUCE_SCATTER]


def entries(rank: int, total: int, share: float, *, seed: int = 0) -> SparseVector:
    """Return random entries with different values and magnitudes per rank."""
    random = np.random.default_rng((rank, seed))
    places = np.flatnonzero(random.random(total) < share)
    values = random.standard_normal(len(places)) * 10.0 ** random.integers(-5, 5)
    return SparseVector(places, values.astype(np.float32))


def exact(parts: list[SparseVector], total: int) -> Tensor:
    result = np.zeros(total)
    for part in parts:
        result[part.indices] += part.values.astype(np.float64)
    return torch.from_numpy(result)


@pytest.fixture
def force(monkeypatch: pytest.MonkeyPatch) -> Callable[[SparseAlgorithm], None]:
    """Force one algorithm."""

    def use(way: SparseAlgorithm) -> None:
        def always(*_: object, **__: object) -> tuple[SparseAlgorithm, str]:
            return way, "the test says so"

        monkeypatch.setattr(sparse_all_reduce, "choose_sparse_algorithm", always)

    return use


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    ("size", "total", "share"),
    [
        (2, 10, 0.5),
        (2, BLOCK * 2 + 1, 0.01),
        (3, BLOCK * 5 + 777, 0.001),
        (3, BLOCK * 2, 0.9),  # full owned_ranges travel as plain values
        (4, BLOCK - 1, 0.02),  # three ranks own nothing
        (5, 1000, 0.0),  # nobody has anything
    ],
)
def test_sums_are_exact_and_the_same_everywhere(
    way: SparseAlgorithm,
    size: int,
    total: int,
    share: float,
    force: Callable[[SparseAlgorithm], None],
) -> None:
    force(way)
    parts = [entries(rank, total, share) for rank in range(size)]

    def live(group: Group) -> Tensor:
        out = torch.full((total,), -77.0)
        SparseAllReduce().run(parts[group.rank], out, GroupCommunicator(group))
        return out

    results = run_world(size, live)
    assert all(torch.equal(results[0], other) for other in results)
    wanted = exact(parts, total)
    scale = sum(np.abs(p.values).max(initial=0) for p in parts)
    assert (results[0].double() - wanted).abs().max() <= size * 2**-24 * scale


def test_both_ways_give_the_same_bits(force: Callable[[SparseAlgorithm], None]) -> None:
    """Sums are in rank order, so that the algorithm does not change the training."""
    parts = [entries(rank, 3 * BLOCK, 0.3) for rank in range(4)]

    def live(group: Group) -> Tensor:
        out = torch.empty(3 * BLOCK)
        SparseAllReduce().run(parts[group.rank], out, GroupCommunicator(group))
        return out

    results = []
    for way in WAYS:
        force(way)
        results.append(run_world(4, live)[0])
    assert torch.equal(*results)


@pytest.mark.parametrize(("alike", "second"), [(True, True), (False, False)])
def test_ranks_that_choose_alike_use_owners_the_second_time(
    alike: bool, second: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first call measures the overlap of the selections."""
    total = 8 * BLOCK
    ways: list[SparseAlgorithm] = []

    def note(*args: int, **how: float) -> tuple[SparseAlgorithm, str]:
        answer = sparse_cost.choose_sparse_algorithm(*args, **how)  # type: ignore[arg-type]
        ways.append(answer[0])
        return answer

    monkeypatch.setattr(sparse_all_reduce, "choose_sparse_algorithm", note)
    parts = [entries(0 if alike else rank, total, 0.05) for rank in range(3)]

    def live(group: Group) -> None:
        summed = SparseAllReduce()
        for _ in range(3):
            summed.run(parts[group.rank], torch.empty(total), GroupCommunicator(group))

    run_world(3, live)
    assert ways[:3] == [SparseAlgorithm.ALL_GATHER] * 3
    assert all((way is SparseAlgorithm.REDUCE_SCATTER) == second for way in ways[3:])


def test_ranks_that_remember_different_things_choose_alike() -> None:
    """After a failure one rank may have finished a call and another not."""
    total = 8 * BLOCK
    alike = entries(0, total, 0.05)

    def live(group: Group) -> Tensor:
        summed, out = SparseAllReduce(), torch.empty(total)
        if group.rank != 1:
            summed._overlap = 1 / 3
        summed.run(alike, out, GroupCommunicator(group))
        return out

    results = run_world(3, live, within_s=SOON_S)
    assert all(torch.equal(results[0], other) for other in results)


# -- what a peer may not say -------------------------------------------------------


def refusal_of(lie: Callable[[Communicator], object], total: int) -> str:
    """Return the error of rank 0 when rank 1 runs ``lie``."""

    def live(group: Group) -> str:
        comm = GroupCommunicator(group)
        if group.rank == 1:
            with suppress(RingleaderError):  # rank 0 breaks the group
                lie(comm)
                group.barrier()
            return ""
        mine = entries(0, total, 0.1)
        with pytest.raises(ProtocolError) as caught:
            handle_of(group).together(
                lambda: SparseAllReduce().run(mine, torch.empty(total), comm)
            )
        return str(caught.value)

    return run_world(2, live, within_s=SOON_S)[0]


@pytest.mark.parametrize(
    "numbers", [[0, 0, 11], [0, 0, -1], [0, 0, 2**62], [0, 1, 0], [-1, 0, 1]]
)
def test_counts_beyond_the_vector_are_refused(numbers: list[int]) -> None:
    text = refusal_of(lambda comm: all_gather_ints(comm, numbers), 10)
    assert text.startswith("rank 1: sparse all_reduce: announced ")


def test_a_guess_that_is_no_share_is_refused() -> None:
    text = refusal_of(lambda p: all_gather_ints(p, [MILLION + 1, 0, 1]), 10)
    assert text.startswith("rank 1")


def test_entries_that_do_not_fit_are_refused() -> None:
    total = 1000

    def lie(comm: Communicator) -> None:
        counts = all_gather_ints(comm, [0, 0, 2])
        mine = pack(SparseVector(np.array([1, 3]), np.ones(2, np.float32)), total)
        mine[-2] = 1  # the same place twice
        lengths = [4 + 6 * sum(row[1:]) for row in counts]
        comm.all_gather_bytes(mine, lengths)

    text = refusal_of(lie, total)
    assert "do not ascend" in text


def test_more_sums_than_places_are_refused(
    force: Callable[[SparseAlgorithm], None],
) -> None:
    force(SparseAlgorithm.REDUCE_SCATTER)
    total = 2 * BLOCK

    def lie(comm: Communicator) -> None:
        counts = all_gather_ints(comm, [0, 0, 0])
        nothing = pack(
            SparseVector(np.empty(0, np.int64), np.empty(0, np.float32)), BLOCK
        )
        comm.all_to_all_bytes([nothing] * 2, [4 + 6 * row[2] for row in counts])
        all_gather_ints(comm, [BLOCK + 1])

    text = refusal_of(lie, total)
    assert f"{BLOCK + 1} sums in a range of {BLOCK} indices" in text
