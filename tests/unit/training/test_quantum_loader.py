"""Batches of the right quanta, read ahead, after any change of the plan."""

from __future__ import annotations

import gc
import os
import random
import time
from collections import Counter
from collections.abc import Container
from typing import Any, NoReturn

import numpy as np
import psutil
import pytest
import torch
from torch import Tensor
from torch.utils.data import ConcatDataset, Dataset, Subset, TensorDataset

from ringleader.errors import ConfigError
from ringleader.ids import NodeId
from ringleader.training.data.assignment import StepTable
from ringleader.training.data.balance import Report
from ringleader.training.data.data_state import DataSpec, is_over, sample_indices
from ringleader.training.data.progress import (
    Progress,
    delivered,
    quanta_of,
    table_after_loss,
    table_of,
)
from ringleader.training.data.quantum_loader import QuantumLoader
from ringleader.training.data.seeded_dataset import draws_nothing

A, B, C = (NodeId(letter * 52) for letter in "abc")


class Noisy(Dataset[Tensor]):
    """Each sample is its index and one number of every generator."""

    def __init__(self, size: int = 37) -> None:
        self.size = size
        self.loaded: list[int] = []
        self.told: list[int] = []

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> Tensor:
        if index >= self.size:
            raise IndexError(index)
        self.loaded.append(index)
        numbers = (random.random(), np.random.random(), float(torch.rand(())))
        return torch.tensor([index, *numbers], dtype=torch.float64)

    def prefetch(self, indices: list[int]) -> None:
        self.told += indices


def spec_of(epochs: int = 2) -> DataSpec:
    return DataSpec(
        num_samples=37, global_batch=10, micro_batch=3, seed=4, epochs=epochs
    )


def drain(
    loader: QuantumLoader,
    spec: DataSpec,
    progress: Progress,
    table: StepTable,
    done: Container[int] = (),
) -> list[Tensor]:
    """Load this member's quanta; each batch holds the samples of its quantum."""
    loader.expect(progress, table)
    rows: list[Tensor] = []
    for quantum in quanta_of(spec, progress, table, A):
        if quantum.index not in done:
            batch = loader.load(quantum).batch
            assert batch[:, 0].tolist() == sample_indices(spec, quantum)
            rows += list(batch)
    return rows


@pytest.mark.parametrize("workers", [0, pytest.param(2, marks=pytest.mark.slow)])
def test_a_run_with_losses_takes_every_sample_once(workers: int) -> None:
    chance = random.Random(workers)
    spec, progress, version = spec_of(), Progress(), 0
    loader = QuantumLoader(Noisy(), spec, A, num_workers=workers)
    loader.start()
    seen, values = Counter[tuple[int, int]](), set()
    while not is_over(spec, progress.state):
        members = [A, B] if chance.random() < 0.5 else [C, A]
        table = table_of(spec, progress, members)
        rows = drain(loader, spec, progress, table)
        if chance.random() < 0.5:  # the other one is lost
            kept = {A: table.quanta[A]}
            table = table_after_loss(spec, progress, [A], kept)
            rows += drain(loader, spec, progress, table, kept[A])
        seen.update((progress.state.epoch, int(row[0])) for row in rows)
        values |= {tuple(row.tolist()) for row in rows}
        version += 1
        reports = {m: Report(chance.uniform(1, 3)) for m in table.quanta}
        progress = delivered(spec, progress, version, table, reports)
    assert max(seen.values()) == 1
    mine = progress.ledger.samples_by_node()[A]
    assert len(seen) == mine == len(values)
    loader.close()


def test_augmentation_follows_the_sample_and_leaves_the_user_s_generators() -> None:
    spec = spec_of()
    rows: dict[tuple[int, int], set[tuple[float, ...]]] = {}
    for members in ([A], [A, B], [B, A]):  # A gets other quanta, in another order
        loader = QuantumLoader(Noisy(), spec, A)
        progress = Progress()
        for version in range(1, 9):
            table = table_of(spec, progress, members)
            torch.manual_seed(9)
            np.random.seed(9)
            random.seed(9)
            for row in drain(loader, spec, progress, table):
                key = (progress.state.epoch, int(row[0]))
                rows.setdefault(key, set()).add(tuple(row[1:].tolist()))
            after = float(torch.rand(())), np.random.random(), random.random()
            torch.manual_seed(9)
            np.random.seed(9)
            random.seed(9)
            assert after == (
                float(torch.rand(())),
                np.random.random(),
                random.random(),
            )
            progress = delivered(spec, progress, version, table, {})
    assert len(rows) == 2 * 37
    assert all(len(values) == 1 for values in rows.values())
    assert len(set().union(*rows.values())) == 2 * 37  # epochs differ, too


class MayDraw(TensorDataset):
    """Of a class whose code could draw random numbers."""


def with_noise(samples: list[tuple[Tensor, ...]]) -> Tensor:
    """Collate as scripts do that mix samples."""
    numbers = (random.random(), np.random.random(), float(torch.rand(())))
    return torch.stack([torch.stack(each) for each in samples]) + torch.tensor(numbers)


def test_a_collate_that_draws_sees_the_same_numbers_without_seeded_samples() -> None:
    rows = torch.arange(37.0)
    parts = [rows[:20], rows[20:]]
    plain: Dataset[Any] = ConcatDataset(
        [Subset(TensorDataset(p, p, p), range(len(p))) for p in parts]
    )
    may_draw = MayDraw(rows, rows, rows)
    assert draws_nothing(plain)
    assert not draws_nothing(may_draw)
    assert not draws_nothing(Subset(may_draw, [0]))
    spec = spec_of()
    table = table_of(spec, Progress(), [A])
    batches = []
    for dataset in (plain, may_draw):
        options: dict[str, Any] = {"num_workers": 1, "collate_fn": with_noise}
        loader = QuantumLoader(dataset, spec, A, **options)
        loader.start()
        loader.expect(Progress(), table)
        mine = quanta_of(spec, Progress(), table, A)
        batches.append([loader.load(quantum).batch for quantum in mine])
        loader.close()
    assert all(map(torch.equal, *batches))
    assert len(batches[0]) == 4


def test_a_step_can_be_done_again() -> None:
    spec, progress = spec_of(), Progress()
    loader = QuantumLoader(Noisy(), spec, A)
    table = table_of(spec, progress, [A, B])
    first = torch.stack(drain(loader, spec, progress, table))
    again = torch.stack(drain(loader, spec, progress, table))
    assert torch.equal(first, again)


def test_a_served_dataset_is_told_what_is_needed_soon() -> None:
    spec, progress, data = spec_of(), Progress(), Noisy()
    loader = QuantumLoader(data, spec, A)
    table = table_of(spec, progress, [A, B])
    loader.expect(progress, table)
    loader.load(quanta_of(spec, progress, table, A)[0])
    assert len(data.loaded) == 3
    assert data.told[:3] == data.loaded
    assert 15 <= len(data.told) <= 30  # four steps of this member


def test_an_error_of_the_dataset_reaches_the_caller_and_the_loader_goes_on() -> None:
    spec, progress, data = spec_of(), Progress(), Noisy(size=20)
    loader = QuantumLoader(data, spec, A)
    table = table_of(spec, progress, [A])
    with pytest.raises(IndexError):
        drain(loader, spec, progress, table)
    data.size = 37
    drain(loader, spec, progress, table)


def test_options_that_the_plan_decides_are_refused() -> None:
    with pytest.raises(ConfigError, match="batch_size, shuffle"):
        QuantumLoader(Noisy(), spec_of(), A, batch_size=3, shuffle=True)


def children() -> set[int]:
    """Those of this process, not of servers that other tests have left running."""
    return {child.pid for child in psutil.Process().children()}


@pytest.mark.slow
def test_workers_stay_for_the_run_and_end_with_the_loader() -> None:
    spec, progress = spec_of(), Progress()
    before = children()
    loader = QuantumLoader(Noisy(), spec, A, num_workers=2)
    loader.start()
    started = children() - before
    assert len(started) == 2
    guess = None
    for version in range(1, 4):
        table = table_of(spec, progress, [A])
        drain(loader, spec, progress, table)
        guess = guess or loader._source.ahead
        assert loader._source.ahead is guess  # the next steps were read ahead
        progress = delivered(spec, progress, version, table, {})
    assert children() - before == started  # the same workers, however often restarted
    loader.close()
    assert not children() - before
    abandoned = QuantumLoader(Noisy(), spec, A, num_workers=1)
    abandoned.start()
    del abandoned
    gc.collect()
    assert not children() - before


@pytest.mark.slow
def test_workers_of_a_killed_process_end_at_once() -> None:
    ready, write = os.pipe()
    child = os.fork()
    if child == 0:
        _train_until_killed(write)
    os.close(write)
    with open(ready, "rb") as stream:
        pids = [int(pid) for pid in stream.readline().split()]
        os.kill(child, 9)
        os.waitpid(child, 0)
    assert len(pids) == 2
    end = time.monotonic() + 60
    while any(map(psutil.pid_exists, pids)) and time.monotonic() < end:
        time.sleep(0.02)
    assert not any(map(psutil.pid_exists, pids))


def _train_until_killed(write: int) -> NoReturn:
    try:
        spec, progress = spec_of(), Progress()
        # torch's workers look every five seconds whether their process lives.
        torch.utils.data._utils.worker.MP_STATUS_CHECK_INTERVAL = 3600.0  # type: ignore[attr-defined]
        loader = QuantumLoader(Noisy(), spec, A, num_workers=2)
        loader.start()
        drain(loader, spec, progress, table_of(spec, progress, [A]))
        os.write(write, " ".join(map(str, children())).encode() + b"\n")
        time.sleep(600)
    finally:
        os._exit(1)
