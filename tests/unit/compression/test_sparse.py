"""Sums of sparse vectors, over real links inside one process."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

import numpy as np
import pytest
import torch
from torch import Tensor

from ringleader.compression import cost, sparse
from ringleader.compression.cost import Way
from ringleader.compression.entries import BLOCK, Entries, pack
from ringleader.compression.peers import GroupPeers, Peers, gather_numbers
from ringleader.compression.sparse import MILLION, SparseSum
from ringleader.errors import ProtocolError, RingleaderError
from ringleader.groups.group import Group
from ringleader.testing.threaded_world import run_world

SOON_S = 20.0
WAYS = [Way.EVERYTHING, Way.OWNERS]


def entries(rank: int, total: int, share: float, *, seed: int = 0) -> Entries:
    """Some places, other values of other sizes on each rank."""
    random = np.random.default_rng((rank, seed))
    places = np.flatnonzero(random.random(total) < share)
    values = random.standard_normal(len(places)) * 10.0 ** random.integers(-5, 5)
    return Entries(places, values.astype(np.float32))


def exact(parts: list[Entries], total: int) -> Tensor:
    result = np.zeros(total)
    for part in parts:
        result[part.places] += part.values.astype(np.float64)
    return torch.from_numpy(result)


@pytest.fixture
def force(monkeypatch: pytest.MonkeyPatch) -> Callable[[Way], None]:
    """Makes one way the only one."""

    def use(way: Way) -> None:
        def always(*_: object, **__: object) -> tuple[Way, str]:
            return way, "the test says so"

        monkeypatch.setattr(sparse, "choose", always)

    return use


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    ("size", "total", "share"),
    [
        (2, 10, 0.5),
        (2, BLOCK * 2 + 1, 0.01),
        (3, BLOCK * 5 + 777, 0.001),
        (3, BLOCK * 2, 0.9),  # full ranges travel as plain values
        (4, BLOCK - 1, 0.02),  # three ranks own nothing
        (5, 1000, 0.0),  # nobody has anything
    ],
)
def test_sums_are_exact_and_the_same_everywhere(
    way: Way, size: int, total: int, share: float, force: Callable[[Way], None]
) -> None:
    force(way)
    parts = [entries(rank, total, share) for rank in range(size)]

    def live(group: Group) -> Tensor:
        out = torch.full((total,), -77.0)
        SparseSum().add_up(parts[group.rank], out, GroupPeers(group))
        return out

    results = run_world(size, live)
    assert all(torch.equal(results[0], other) for other in results)
    wanted = exact(parts, total)
    scale = sum(np.abs(p.values).max(initial=0) for p in parts)
    assert (results[0].double() - wanted).abs().max() <= size * 2**-24 * scale


def test_both_ways_give_the_same_bits(force: Callable[[Way], None]) -> None:
    """Rank order, whoever adds: else a choice of way would change the training."""
    parts = [entries(rank, 3 * BLOCK, 0.3) for rank in range(4)]

    def live(group: Group) -> Tensor:
        out = torch.empty(3 * BLOCK)
        SparseSum().add_up(parts[group.rank], out, GroupPeers(group))
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
    """How alike they choose is seen by the first exchange."""
    total = 8 * BLOCK
    ways: list[Way] = []

    def note(*args: int, **how: float) -> tuple[Way, str]:
        answer = cost.choose(*args, **how)  # type: ignore[arg-type]
        ways.append(answer[0])
        return answer

    monkeypatch.setattr(sparse, "choose", note)
    parts = [entries(0 if alike else rank, total, 0.05) for rank in range(3)]

    def live(group: Group) -> None:
        summed = SparseSum()
        for _ in range(3):
            summed.add_up(parts[group.rank], torch.empty(total), GroupPeers(group))

    run_world(3, live)
    assert ways[:3] == [Way.EVERYTHING] * 3
    assert all((way is Way.OWNERS) == second for way in ways[3:])


def test_ranks_that_remember_different_things_choose_alike() -> None:
    """After a failure one may have finished an exchange and another not."""
    total = 8 * BLOCK
    alike = entries(0, total, 0.05)

    def live(group: Group) -> Tensor:
        summed, out = SparseSum(), torch.empty(total)
        if group.rank != 1:
            summed._overlap = 1 / 3
        summed.add_up(alike, out, GroupPeers(group))
        return out

    results = run_world(3, live, within_s=SOON_S)
    assert all(torch.equal(results[0], other) for other in results)


# -- what a peer may not say -------------------------------------------------------


def refusal_of(lie: Callable[[Peers], object], total: int) -> str:
    """What rank 0 says when rank 1 does ``lie`` instead of adding up."""

    def live(group: Group) -> str:
        peers = GroupPeers(group)
        if group.rank == 1:
            with suppress(RingleaderError):  # rank 0 breaks the group
                lie(peers)
                group.barrier()
            return ""
        mine = entries(0, total, 0.1)
        with pytest.raises(ProtocolError) as caught:
            group.together(lambda: SparseSum().add_up(mine, torch.empty(total), peers))
        return str(caught.value)

    return run_world(2, live, within_s=SOON_S)[0]


@pytest.mark.parametrize(
    "numbers", [[0, 0, 11], [0, 0, -1], [0, 0, 2**62], [0, 1, 0], [-1, 0, 1]]
)
def test_counts_beyond_the_vector_are_refused(numbers: list[int]) -> None:
    text = refusal_of(lambda peers: gather_numbers(peers, numbers), 10)
    assert text.startswith("rank 1: sparse values: says it has ")


def test_a_guess_that_is_no_share_is_refused() -> None:
    text = refusal_of(lambda p: gather_numbers(p, [MILLION + 1, 0, 1]), 10)
    assert text.startswith("rank 1")


def test_entries_that_do_not_fit_are_refused() -> None:
    total = 1000

    def lie(peers: Peers) -> None:
        counts = gather_numbers(peers, [0, 0, 2])
        mine = pack(Entries(np.array([1, 3]), np.ones(2, np.float32)), total)
        mine[-2] = 1  # the same place twice
        lengths = [4 + 6 * sum(row[1:]) for row in counts]
        peers.gather(mine, lengths)

    text = refusal_of(lie, total)
    assert "do not ascend" in text


def test_more_sums_than_places_are_refused(force: Callable[[Way], None]) -> None:
    force(Way.OWNERS)
    total = 2 * BLOCK

    def lie(peers: Peers) -> None:
        counts = gather_numbers(peers, [0, 0, 0])
        nothing = pack(Entries(np.empty(0, np.int64), np.empty(0, np.float32)), BLOCK)
        peers.swap([nothing] * 2, [4 + 6 * row[2] for row in counts])
        gather_numbers(peers, [BLOCK + 1])

    text = refusal_of(lie, total)
    assert f"{BLOCK + 1} sums, in {BLOCK} places" in text
