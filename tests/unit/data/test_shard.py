"""Every sample exactly once per epoch, over any ranks, weights and interruptions."""

from __future__ import annotations

from itertools import islice, pairwise

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import TensorDataset

from ringleader.data.permutation import Permutation
from ringleader.data.quotas import quotas
from ringleader.data.shard import Shard, shard
from ringleader.errors import ConfigError

WEIGHTS = st.lists(st.floats(0.1, 10), min_size=1, max_size=5)


@given(st.integers(1, 3000), st.integers(0, 5), st.integers(0, 3))
def test_an_order_holds_every_number_once(n: int, seed: int, epoch: int) -> None:
    order = Permutation(n, seed, epoch)(np.arange(n))
    assert sorted(order) == list(range(n))


def test_orders_of_epochs_and_seeds_look_unrelated() -> None:
    n = 10_000
    orders = [Permutation(n, s, e)(np.arange(n)) for s in (0, 1) for e in (0, 1)]
    for a, b in pairwise([np.arange(n), *orders]):
        assert abs(np.corrcoef(a, b)[0, 1]) < 0.05
        assert (a == b).sum() < 10
    steps = np.abs(np.diff(orders[0]))
    assert 0.3 < steps.mean() / n < 0.36  # 1/3 if neighbours are independent


def test_a_part_of_the_order_needs_no_list_of_all() -> None:
    order = Permutation(10**15, 1, 2)
    few = order(np.array([0, 1, 10**15 - 1]))
    assert len(set(few)) == 3
    assert all(0 <= index < 10**15 for index in few)


@given(st.integers(0, 500), WEIGHTS)
def test_quotas_add_up_and_follow_the_weights(count: int, weights: list[float]) -> None:
    shares = quotas(count, weights)
    assert sum(shares) == count
    exact = [count * weight / sum(weights) for weight in weights]
    if min(exact) >= 1:
        assert all(abs(a - b) < 1 for a, b in zip(shares, exact, strict=True))
    elif count >= len(weights):
        assert min(shares) >= 1


def data(n: int) -> TensorDataset:
    return TensorDataset(torch.arange(n))


def shares(
    n: int, batch: int, weights: list[float]
) -> list[Shard[tuple[torch.Tensor, ...]]]:
    size = len(weights)
    return [
        Shard(data(n), batch, weights=weights, rank=rank, size=size)
        for rank in range(size)
    ]


@given(st.integers(1, 60), st.integers(5, 20), WEIGHTS, WEIGHTS, st.integers(0, 12))
def test_an_interrupted_epoch_goes_on_with_other_ranks(
    n: int, batch: int, before: list[float], after: list[float], stop: int
) -> None:
    seen: list[int] = []
    position = 0
    for mine in shares(n, batch, before):
        for begin, end in mine.steps()[:stop]:
            seen += mine.indices(begin, end)
            position = end
    for mine in shares(n, batch, after) if position < n else ():
        mine.load_state_dict({**mine.state_dict(), "position": position})
        for begin, end in mine.steps():
            assert mine.indices(begin, end) or end - begin < len(after)
            seen += mine.indices(begin, end)
    assert sorted(seen) == list(range(n))


@pytest.mark.parametrize("workers", [0, pytest.param(2, marks=pytest.mark.slow)])
def test_an_epoch_on_three_then_two_then_five_ranks_uses_every_sample_once(
    workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each world is interrupted in mid-epoch, while its loaders have read ahead; the
    weights change with it. One object per rank lives through all worlds."""
    n, batch = 101, 11
    place = [0, 1]
    monkeypatch.setattr("ringleader.data.shard._place", lambda *_: tuple(place))
    ranks = [shard(data(n), batch, seed=5, num_workers=workers) for _ in range(5)]
    state, seen = ranks[0].state_dict(), list[int]()
    for weights, steps in (([1.0, 2.0, 3.0], 4), ([5.0, 1.0], 2), (None, 99)):
        size = len(weights or ranks)
        for rank, mine in enumerate(ranks[:size]):
            place[:] = rank, size
            mine.load_state_dict(state)
            mine.weights = weights
            for (indices,) in islice(mine, steps):
                seen += indices.tolist()
            assert mine.state_dict() == ranks[0].state_dict()
        state = ranks[0].state_dict()
        place[:] = 0, 1
    assert sorted(seen) == list(range(n))
    place[:] = 0, 4
    ranks[0].weights = [1.0, 2.0]
    with pytest.raises(ConfigError, match="4 numbers above 0 needed"):
        next(iter(ranks[0]))


class Told(TensorDataset):
    """Records what it is told that it will be asked for."""

    def __init__(self, n: int) -> None:
        super().__init__(torch.arange(n))
        self.told: list[int] = []

    def prefetch(self, indices: list[int]) -> None:
        self.told += indices


def test_a_dataset_is_told_once_what_comes_next() -> None:
    source = Told(100)
    mine = Shard(source, 10, rank=1, size=2)
    planned = [index for step in mine.steps() for index in mine.indices(*step)]
    steps = iter(mine)
    next(steps)
    assert source.told == planned[: 5 * 5]  # this step and four more
    list(steps)
    assert source.told == planned


def test_a_loader_gives_what_was_planned_and_empty_batches_if_it_must() -> None:
    """Two samples are left for three ranks."""
    batches = []
    for mine in shares(11, 9, [1.0, 1.0, 1.0]):
        mine.load_state_dict({**mine.state_dict(), "position": 9})
        batches += [batch for (batch,) in mine]
        assert (mine.epoch, mine.position) == (1, 0)
    assert sorted(len(batch) for batch in batches) == [0, 1, 1]
    assert all(batch.dtype == torch.int64 for batch in batches)


def test_a_step_counts_when_its_batch_is_handed_out() -> None:
    mine = shard(data(10), 4, num_workers=0)
    steps = iter(mine)
    next(steps)
    assert (mine.position, len(mine)) == (4, 2)
    next(steps)
    assert (mine.position, len(mine)) == (8, 1)
    assert len(list(steps)) == 1
    assert (mine.epoch, mine.position) == (1, 0)


def test_a_checkpoint_after_the_last_step_begins_the_next_epoch() -> None:
    mine = shard(data(8), 4)
    mine.load_state_dict({**mine.state_dict(), "epoch": 2, "position": 8})
    assert (mine.epoch, mine.position) == (3, 0)  # `while epoch < 3` is done
    assert len(list(mine)) == 2
    assert mine.epoch == 4


def test_wrong_arguments_and_another_dataset_are_named() -> None:
    with pytest.raises(ConfigError, match="the dataset is empty"):
        shard(data(0), 4)
    with pytest.raises(ConfigError, match="less than one sample for each of 3 ranks"):
        Shard(data(9), 2, rank=0, size=3)
    with pytest.raises(ConfigError, match="2 numbers above 0 needed"):
        Shard(data(9), 4, rank=0, size=2, weights=[1.0, 0.0])
    state = shard(data(9), 4, seed=3).state_dict()
    with pytest.raises(ConfigError, match="samples: 8 here, 9 in the checkpoint"):
        shard(data(8), 4, seed=3).load_state_dict(state)
    with pytest.raises(ConfigError, match="shuffle: 0 here, 1 in the checkpoint"):
        shard(data(9), 4, seed=3, shuffle=False).load_state_dict(state)
    with pytest.raises(ConfigError, match="seed: 4 here, 3 in the checkpoint"):
        shard(data(9), 4, seed=4).load_state_dict(state)
