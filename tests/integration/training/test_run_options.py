"""Loss scaling, shrink, min_members and a stranger, in one run of real processes."""

from __future__ import annotations

import os
import signal
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from ringleader.data.permutation import Permutation
from ringleader.errors import InternalError, LayoutMismatch, TooFewMembers
from ringleader.groups.group import Group
from ringleader.testing.processes import ForkServer, Ready, spawn_ranks
from ringleader.training.elastic import start_run
from ringleader.training.options import Options
from ringleader.training.run import ElasticRun
from tests.kit import elastic_task
from tests.kit.elastic_task import CLIP, SEED, Member, members, samples

TIME_S = 300.0
SPEC = replace(elastic_task.SPEC, epochs=None)
PAUSE_S = 0.05
"""Makes quanta last about as long on all members, so that all of them get some."""
SPOILT = 1
"""The version whose gradient is not finite: its update is left out."""


def make() -> tuple[nn.Module, torch.optim.Optimizer, Any]:
    torch.manual_seed(4)
    model = nn.Sequential(nn.Linear(7, 31), nn.Tanh(), nn.Linear(31, 5)).double()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    return model, optimizer, torch.optim.lr_scheduler.StepLR(optimizer, 3, 0.9)


def train(me: Member, rank: int) -> Iterator[tuple[ElasticRun, nn.Module]]:
    """Yield the run and the model before each quantum is computed."""
    torch.set_num_threads(1)
    model, optimizer, scheduler = make()
    options = Options(
        seed=SEED,
        clip=CLIP,
        scheduler=scheduler,
        scaler=torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=3),
        on_loss="refill" if rank == 3 else "shrink",
        min_members=2,
        min_members_wait_s=10.0,
    )
    run = start_run(model, optimizer, samples(), SPEC, options, me.config())
    for x, y in run:
        yield run, model
        loss = nn.functional.cross_entropy(model(x), y)
        is_spoilt = rank == 0 and run.version == SPOILT - 1
        run.backward(loss * float("inf") if is_spoilt else loss)
        run.step()


class Script:
    """What happens to a run: each event follows from one that all can see."""

    def __init__(self, rank: int, folder: Path) -> None:
        self._rank = rank
        self._go, self._refused = folder / "go", folder / "refused"
        self._quanta_of_two = 0

    def wait(self) -> None:
        """Return when a stranger may come; the test has a limit."""
        while not self._go.exists():
            time.sleep(0.05)

    def refuse(self) -> None:
        """Note that the stranger was refused."""
        self._refused.touch()

    def follow(self, quanta: Iterator[object], run: ElasticRun) -> None:
        """Compute all quanta, and do what is to happen in between."""
        for _ in quanta:
            time.sleep(PAUSE_S)
            self._act(run)

    def _act(self, run: ElasticRun) -> None:
        """Rank 2 dies when the stranger was refused, rank 1 some steps later."""
        if self._rank == 0 and run.version >= 2:
            self._go.touch()
        if not self._refused.exists():
            return
        self._quanta_of_two += len(run.members) == 2
        is_third = self._rank == 2 and len(run.members) == len(run.contributors) == 3
        if is_third or (self._rank == 1 and self._quanta_of_two > 20):
            os.kill(os.getpid(), signal.SIGKILL)


def member(group: Group, ready: Ready, world: list[Member], folder: Path) -> Any:  # noqa: ANN401
    """Ranks 2 and 1 kill themselves, rank 3 has another option, rank 0 stays."""
    rank, script = group.rank, Script(group.rank, folder)
    group.close()
    ready()
    if rank == 3:
        script.wait()
        with pytest.raises(LayoutMismatch) as refused:
            next(train(world[rank], rank))
        script.refuse()
        return str(refused.value)
    quanta = train(world[rank], rank)
    run, model = next(quanta)
    with pytest.raises(TooFewMembers) as ended:
        script.follow(quanta, run)
    weights = [p.detach().numpy().copy() for p in model.parameters()]
    entries = [tuple(entry) for entry in run.ledger().entries()]
    return str(ended.value), run.version, entries, weights


def replay(entries: list[tuple[Any, ...]], num_versions: int) -> list[np.ndarray]:
    """Train in one process on the samples that the ledger names, step by step."""
    model, optimizer, scheduler = make()
    x, y = samples().tensors
    for version in range(1, num_versions + 1):
        rows = [
            Permutation(SPEC.num_samples, SEED, epoch)(np.arange(begin, end))
            for number, _, epoch, begin, end in entries
            if number == version
        ]
        batch = torch.from_numpy(np.concatenate(rows))
        optimizer.zero_grad()
        loss: Any = nn.functional.cross_entropy(model(x[batch]), y[batch])
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        if version != SPOILT:
            optimizer.step()
        scheduler.step()
    return [p.detach().numpy() for p in model.parameters()]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Detected call of `lr_scheduler.step")
def test_scaled_losses_shrink_min_members_and_a_stranger(
    tmp_path: Path, fork_server: ForkServer
) -> None:
    world = [replace(each, size=3) for each in members(tmp_path, ["", "", "", ""])]
    world[3] = replace(world[3], is_joiner=True)
    with spawn_ranks(4, member, world, tmp_path, fork_server=fork_server) as ranks:
        refusal = ranks[3].result(TIME_S)
        for rank in (2, 1):
            with pytest.raises(InternalError, match="died without a word"):
                ranks[rank].result(TIME_S)
        text, version, entries, weights = ranks[0].result(TIME_S)
    assert "differs from" in refusal
    assert "on_loss (refill here, shrink there)" in refusal
    assert "1 of at least 2 members after 10 s" in text
    assert {number for number, *_ in entries} == set(range(1, version + 1))
    sizes = Counter[int]()
    positions = Counter[tuple[int, int]]()
    for number, _, epoch, begin, end in entries:
        sizes[number] += end - begin
        positions.update((epoch, i) for i in range(begin, end))
    per_epoch = Counter(epoch for epoch, _ in positions)
    assert set(positions.values()) == {1}, "no sample is used twice"
    for epoch, count in per_epoch.items():
        assert {i for e, i in positions if e == epoch} == set(range(count)), "no gap"
    assert all(per_epoch[e] == SPEC.num_samples for e in range(max(per_epoch)))
    ends = SPEC.num_samples % SPEC.global_batch
    assert any(size not in (SPEC.global_batch, ends) for size in sizes.values())
    wanted = replay(entries, version)
    difference = max(
        float(np.abs(a - b).max()) for a, b in zip(weights, wanted, strict=True)
    )
    assert difference < 1e-9
