"""Every sample exactly once per epoch, whoever is lost, returns or is slow."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ringleader.checkpoint import values
from ringleader.data.permutation import Permutation
from ringleader.errors import ConfigError, InternalError
from ringleader.ids import NodeId
from ringleader.training.data import ledger as ledger_module
from ringleader.training.data.assignment import (
    OnLoss,
    StepTable,
    after_loss,
    orphans,
    overlapping,
    quotas,
)
from ringleader.training.data.balance import Report
from ringleader.training.data.data_state import (
    DataSpec,
    DataState,
    advance,
    is_over,
    quanta,
    sample_indices,
)
from ringleader.training.data.intervals import Interval, union
from ringleader.training.data.ledger import Ledger, record
from ringleader.training.data.progress import (
    Progress,
    delivered,
    table_after_loss,
    table_of,
)

NODES = [NodeId(letter * 52) for letter in "abcde"]
A, B, C, D, E = NODES


def copy_of(progress: Progress, spec: DataSpec) -> Progress:
    """What a newcomer receives."""
    return Progress.from_plain(values.decode(values.encode(progress.to_plain())), spec)


def test_every_small_spec_takes_every_sample_once_per_epoch() -> None:
    for n, batch, micro in product(range(1, 12), range(1, 7), range(1, 7)):
        if micro > batch:
            continue
        spec = DataSpec(num_samples=n, global_batch=batch, micro_batch=micro, epochs=2)
        state, seen = DataState(), Counter[tuple[int, int]]()
        while not is_over(spec, state):
            step = quanta(spec, state)
            sizes = [quantum.num_samples for quantum in step]
            assert sizes[:-1] == [micro] * (len(sizes) - 1)
            assert 0 < sum(sizes) <= batch
            for quantum in step:
                seen.update((state.epoch, i) for i in sample_indices(spec, quantum))
            state = advance(spec, state)
        assert seen == Counter(product(range(2), range(n)))
        assert state.samples == 2 * n
        assert quanta(spec, state) == ()


def test_quanta_follow_the_permutation_across_blocks() -> None:
    spec = DataSpec(
        num_samples=10_001, global_batch=9_000, micro_batch=37, seed=3, epochs=2
    )
    state, found = DataState(), []
    while not is_over(spec, state):
        for quantum in quanta(spec, state):
            found += sample_indices(spec, quantum)
        state = advance(spec, state)
    positions = np.arange(10_001)
    expected = [Permutation(10_001, 3, epoch)(positions) for epoch in range(2)]
    assert found == np.concatenate(expected).tolist()
    step = quanta(replace(spec, shuffle=False), DataState())
    assert sample_indices(replace(spec, shuffle=False), step[1]) == [*range(37, 74)]


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 1 << 32), st.sampled_from(["refill", "shrink"]))
def test_samples_count_once_under_losses_joins_and_copies(
    seed: int, on_loss: OnLoss
) -> None:
    chance = random.Random(seed)
    batch = chance.randint(1, 20)
    spec = DataSpec(
        num_samples=chance.randint(1, 80),
        global_batch=batch,
        micro_batch=chance.randint(1, batch),
        seed=seed,
        epochs=2,
    )
    progress, version = Progress(), 0
    members = chance.sample(NODES, chance.randint(1, 5))
    seen = Counter[tuple[int, int]]()
    while not is_over(spec, progress.state):
        step = quanta(spec, progress.state)
        table = table_of(spec, progress, members)
        while chance.random() < 0.4:
            table = view_change(chance, spec, progress, table, on_loss)
        members = list(table.quanta)
        for indices in table.quanta.values():
            for index in indices:
                samples = sample_indices(spec, step[index])
                seen.update((progress.state.epoch, i) for i in samples)
        version += 1
        reports = {m: Report(chance.uniform(0.1, 9)) for m in members}
        copied = copy_of(progress, spec)
        progress = delivered(spec, progress, version, table, reports)
        assert delivered(spec, copied, version, table, reports) == progress
        assert on_loss == "shrink" or not progress.state.debt
    assert seen == Counter(product(range(2), range(spec.num_samples)))
    last = [[Interval(*e[3:])] for e in progress.ledger.entries() if e.epoch == 1]
    assert union(*last) == (Interval(0, spec.num_samples),)
    assert sum(progress.ledger.samples_by_node().values()) == 2 * spec.num_samples
    assert progress.state.samples == 2 * spec.num_samples


def view_change(
    chance: random.Random,
    spec: DataSpec,
    progress: Progress,
    table: StepTable,
    on_loss: OnLoss,
) -> StepTable:
    """Some members are lost, others join; a newcomer computes the same table."""
    stay = [m for m in table.quanta if chance.random() < 0.7]
    fresh = [m for m in NODES if m not in table.quanta and chance.random() < 0.3]
    kept = {member: table.quanta[member] for member in stay}
    members = chance.sample([*stay, *fresh], len(stay + fresh)) or [A]
    after = table_after_loss(spec, progress, members, kept, on_loss)
    newcomer = copy_of(progress, spec)
    assert table_after_loss(spec, newcomer, members, kept, on_loss) == after
    assert all(set(kept[m]) <= set(after.quanta[m]) for m in stay)
    return after


def test_shrunken_steps_are_paid_first_and_an_epoch_waits_for_its_debt() -> None:
    spec = DataSpec(num_samples=20, global_batch=8, micro_batch=2, shuffle=False)
    state = advance(spec, DataState(), dropped=[1, 3])
    assert (state.cursor, state.debt, state.samples) == (8, ((2, 4), (6, 8)), 4)
    step = quanta(spec, state)
    assert [sample_indices(spec, q) for q in step] == [[2, 3], [6, 7], [8, 9], [10, 11]]
    state = advance(spec, advance(spec, state), dropped=[0])
    assert (state.epoch, state.cursor, state.debt) == (0, 20, ((12, 14),))
    assert [sample_indices(spec, q) for q in quanta(spec, state)] == [[12, 13]]
    state = advance(spec, state)
    assert (state.epoch, state.cursor, state.debt, state.samples) == (1, 0, (), 20)


def test_debt_of_odd_sizes_is_cut_into_full_quanta() -> None:
    spec = DataSpec(num_samples=11, global_batch=7, micro_batch=3, shuffle=False)
    state = advance(spec, DataState(), dropped=[2])  # the remainder: position 6
    sizes = [(q.intervals, q.num_samples) for q in quanta(spec, state)]
    assert sizes == [(((6, 7), (7, 9)), 3), (((9, 11),), 2)]


def test_a_step_without_samples_is_refused() -> None:
    spec = DataSpec(num_samples=4, global_batch=4, micro_batch=2)
    with pytest.raises(InternalError, match="without samples"):
        advance(spec, DataState(), dropped=[0, 1])
    kept = {A: ()}
    table = table_after_loss(spec, Progress(), [A], kept, "shrink")
    assert table == StepTable({A: (0, 1)})


def test_the_order_differs_by_epoch_and_seed_and_can_be_plain() -> None:
    def order(seed: int, epoch: int, *, shuffle: bool = True) -> list[int]:
        spec = DataSpec(
            num_samples=50,
            global_batch=50,
            micro_batch=50,
            seed=seed,
            shuffle=shuffle,
            epochs=None,
        )
        return sample_indices(spec, quanta(spec, DataState(epoch=epoch))[0])

    orders = [order(0, 0), order(0, 1), order(1, 0)]
    assert len({tuple(o) for o in orders}) == 3
    assert all(sorted(o) == list(range(50)) for o in orders)
    assert order(0, 0, shuffle=False) == list(range(50))


@pytest.mark.parametrize(
    "plain",
    [
        {},
        {"epoch": 0, "cursor": 21, "debt": [], "samples": 0},
        {"epoch": 0, "cursor": 20, "debt": [], "samples": 0},
        {"epoch": -1, "cursor": 0, "debt": [], "samples": 0},
        {"epoch": 0, "cursor": 4, "debt": [[2, 6]], "samples": 0},
        {"epoch": 0, "cursor": 9, "debt": [[2, 6], [5, 7]], "samples": 0},
        {"epoch": 0, "cursor": 4, "debt": [[-2, 1]], "samples": 0},
        {"epoch": 0, "cursor": 4, "debt": 7, "samples": 0},
    ],
)
def test_a_position_that_cannot_be_is_refused(plain: dict[str, object]) -> None:
    spec = DataSpec(num_samples=20, global_batch=8, micro_batch=2)
    with pytest.raises(ConfigError):
        DataState.from_plain(plain, spec)


def test_specs_that_make_no_sense_are_refused() -> None:
    with pytest.raises(ConfigError, match="empty"):
        DataSpec(num_samples=0, global_batch=1, micro_batch=1)
    with pytest.raises(ConfigError, match="micro_batch=3"):
        DataSpec(num_samples=9, global_batch=2, micro_batch=3)
    with pytest.raises(ConfigError, match="at most 4096"):
        DataSpec(num_samples=9000, global_batch=9000, micro_batch=2)
    with pytest.raises(ConfigError, match="epochs"):
        DataSpec(num_samples=9, global_batch=2, micro_batch=2, epochs=-1)


def test_quotas_are_the_best_for_equal_quanta() -> None:
    chance = random.Random(5)
    for _ in range(40):
        times = {m: chance.uniform(1, 8) for m in (A, B, C)}
        count = chance.randint(0, 7)
        given_ = quotas(count, [A, B, C], times)
        assert sum(given_.values()) == count
        mine = max(given_[m] * times[m] for m in times)
        every = product(range(count + 1), repeat=3)
        best = min(
            max(n * t for n, t in zip(split, times.values(), strict=True))
            for split in every
            if sum(split) == count
        )
        assert mine == pytest.approx(best)


def test_unknown_members_are_probed_and_spares_rest() -> None:
    assert quotas(8, [A, B, C], {}) == {A: 3, B: 3, C: 2}
    assert quotas(8, [A, B, C], {A: 1, B: 1}) == {A: 4, B: 3, C: 1}
    assert quotas(8, [A, B, C], {A: 1, B: 1, C: 1}, spares=[B]) == {A: 4, B: 0, C: 4}
    assert quotas(4, [A, B], {A: 1, B: 1}, spares=[A, B]) == {A: 2, B: 2}
    assert quotas(1, [A, B, C], {A: 1}) == {A: 0, B: 1, C: 0}
    assert quotas(0, [A], {A: 1}) == {A: 0}


def test_quanta_that_two_claim_or_that_do_not_exist_are_found() -> None:
    assert overlapping(4, {A: (0, 1), B: (2,), C: ()}) == set()
    assert overlapping(4, {A: (0, 1), B: (1, 2), C: (2,)}) == {B}
    assert overlapping(4, {A: (4,), B: (-1,), C: (3, 3)}) == {A, B, C}
    with pytest.raises(InternalError):
        after_loss(4, [A, B], {A: (0,), B: (0,)}, None)
    assert orphans(4, {A: (2,)}) == (0, 1, 3)


def test_the_ledger_merges_steps_and_stays_exact() -> None:
    spec = DataSpec(num_samples=1000, global_batch=10, micro_batch=5, epochs=None)
    progress = Progress()
    for version in range(1, 351):
        table = table_of(spec, progress, [A, B])
        progress = delivered(spec, progress, version, table, {})
    assert len(progress.ledger.runs) == 4  # one per epoch
    assert [tuple(e) for e in progress.ledger.entries()][198:202] == [
        (100, A, 0, 990, 995),
        (100, B, 0, 995, 1000),
        (101, A, 1, 0, 5),
        (101, B, 1, 5, 10),
    ]
    assert progress.ledger.samples_by_node() == {A: 1750, B: 1750}


def test_the_ledger_refuses_a_position_that_comes_twice_or_is_left_out() -> None:
    spec = DataSpec(num_samples=10, global_batch=5, micro_batch=5)
    ledger = record(Ledger(), spec, 1, 0, {A: (Interval(0, 5),)})
    with pytest.raises(InternalError, match="twice"):
        record(ledger, spec, 2, 0, {B: (Interval(4, 9),)})
    with pytest.raises(InternalError, match="epoch 1 after"):
        record(ledger, spec, 2, 1, {B: (Interval(0, 5),)})


def test_the_ledger_is_bounded_and_counts_what_it_forgot(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("ringleader.training.data.ledger.MAX_RUNS", 60)
    size = 60 + 50
    spec = DataSpec(num_samples=10 * size, global_batch=5, micro_batch=5)
    ledger = Ledger()
    for number in range(size):
        part = (Interval(7 * number, 7 * number + 5),)
        ledger = record(ledger, spec, number, 0, {NODES[number % 2]: part})
    assert len(ledger.runs) == 60
    assert len(ledger.covered) == size
    assert ledger.samples_by_node() == {A: size * 5 // 2, B: size * 5 // 2}
    assert next(ledger.entries()).version == 50
    plain = ledger.to_plain()
    assert Ledger.from_plain(values.decode(values.encode(plain))) == ledger


def grown(num_runs: int) -> Ledger:
    """A ledger whose table changes in every version."""
    spec = DataSpec(num_samples=1 << 40, global_batch=8, micro_batch=4)
    ledger = Ledger()
    for number in range(num_runs):
        begin = 8 * number
        half = begin + 1 + number % 6
        parts = {A: (Interval(begin, half),), B: (Interval(half, begin + 8),)}
        ledger = record(ledger, spec, number + 1, 0, parts)
    return ledger


def num_values(tree: object) -> int:
    if isinstance(tree, dict):
        return sum(num_values(each) for each in tree.values())
    if isinstance(tree, list | tuple):
        return sum(num_values(each) for each in tree)
    return 1


def test_an_old_ledger_is_sent_in_as_few_values_as_a_young_one() -> None:
    young, old = grown(3), grown(ledger_module.MAX_RUNS + 100)
    assert num_values(old.to_plain()) == num_values(young.to_plain()) < 10
    assert len(old.runs) == ledger_module.MAX_RUNS
    assert sum(old.samples_by_node().values()) == 8 * (ledger_module.MAX_RUNS + 100)
    assert [tuple(entry) for entry in old.entries()][-2:] == [
        (1124, A, 0, 8984, 8986),
        (1124, B, 0, 8986, 8992),
    ]


def changed(data: bytes, at: int, to: int) -> bytes:
    """Replace the 64-bit number at byte ``at``."""
    return data[:at] + to.to_bytes(8, "little", signed=True) + data[at + 8 :]


@pytest.mark.parametrize(
    "change",
    [
        lambda p: p.pop("spans"),
        lambda p: p.update(heads=[[1, 1, 0, 8, []]]),
        lambda p: p.update(heads=p["heads"][:-1]),
        lambda p: p.update(heads=p["heads"] * 1000),
        lambda p: p.update(heads=changed(p["heads"], 32, 3)),  # number of parts
        lambda p: p.update(heads=changed(p["heads"], 32, 1 << 61)),
        lambda p: p.update(heads=changed(p["heads"], 8, -1)),  # number of versions
        lambda p: p.update(heads=changed(p["heads"], 8, (1 << 63) - 1)),
        lambda p: p.update(parts=bytes(52) + p["parts"][52:]),  # no name
        lambda p: p.update(parts=b"\xff" + p["parts"][1:]),
        lambda p: p.update(parts=changed(p["parts"], 52, 2)),  # number of intervals
        lambda p: p.update(spans=changed(p["spans"], 0, -1)),
        lambda p: p.update(spans=changed(p["spans"], 8, 0)),  # empty
        lambda p: p.update(covered=p["covered"] * 2),
        lambda p: p.update(covered=1 << 40),
        lambda p: p.update(folded=bytes(60)),
        lambda p: p.update(folded=5),
        lambda p: p.update(epoch="x"),
    ],
)
def test_a_damaged_ledger_is_refused(change: Callable[[dict[str, Any]], None]) -> None:
    plain = grown(3).to_plain()
    Ledger.from_plain(plain)
    change(plain)
    with pytest.raises(ConfigError):
        Ledger.from_plain(plain)
