"""Compressed gradients train as well as uncompressed ones; defective schemes fail.

Two real tasks are trained by two processes with every scheme, from the same seed. What
the systems that we replace did to gradients is trained in the same way, and must fail
the same check. Three seeds and longer runs are in benchmarks/compression.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache, partial

import pytest
import torch

from ringleader.compression import compressor
from ringleader.groups.group import Group
from ringleader.testing.processes import ForkServer, Ready, spawn_ranks
from tests.kit.compression_bugs import BUGS
from tests.kit.training_tasks import Task, characters, digits, final_loss, learn

pytestmark = [pytest.mark.timeout(115), pytest.mark.slow]

SIZE = 2
WITHIN_S = 100.0
"""It takes half a minute on an idle machine; the machine may be busy."""

CODEC_BAR, SPARSE_BAR = 0.005, 0.02
"""scheme -> largest relative difference from the uncompressed final loss."""

GOOD = {
    "bf16": CODEC_BAR,
    "fp16": CODEC_BAR,
    "int8": CODEC_BAR,
    "powersgd:4": SPARSE_BAR,
    "topk:0.01": SPARSE_BAR,
}
BAD = {
    "truncating int8": CODEC_BAR,
    "1/p with feedback": SPARSE_BAR,
    "residual dropped, top-k": SPARSE_BAR,
    "residual dropped, one bit": SPARSE_BAR,
}
RUNS = {
    "digits": ("none", *GOOD, *BAD),
    "characters": ("none", "int8", "powersgd:4", "topk:0.01", "truncating int8"),
}
"""The tasks and schemes; the text task takes longer and has fewer schemes."""

LEARNED = {"digits": 0.1, "characters": 0.6}
"""How much of the first loss may be left, so that the comparison means something. Of
text, less than half would need more than a few seconds."""

Run = tuple[list[float], bytes]
"""The loss of one rank after every step, and its parameters at the end."""


def make_task(name: str) -> Task:
    if name == "digits":
        return digits()
    return characters(width=32, context=32).shortened(300)


def train(group: Group, _ready: Ready, task_name: str, scheme: str) -> Run:
    """Train once on this rank."""
    task = make_task(task_name)
    average = (
        BUGS[scheme](group)
        if scheme in BUGS
        else partial(compressor(scheme).average, group)
    )
    model = task.model(0)
    place = {"rank": group.rank, "size": group.size}
    losses = list(learn(task, model, 0, average=average, **place))
    flat = torch.cat([p.detach().flatten() for p in model.parameters()])
    return losses, flat.numpy().tobytes()


Runs = Callable[[str, str], list[Run]]
"""Task and scheme -> the run of each rank."""


@pytest.fixture(scope="module")
def runs(fork_server: ForkServer) -> Runs:
    """Returns a function that trains a task with a scheme once and keeps the result."""

    @cache
    def run(task: str, scheme: str) -> list[Run]:
        with spawn_ranks(
            SIZE, train, task, scheme, transport="shm", fork_server=fork_server
        ) as ranks:
            return [rank.result(WITHIN_S) for rank in ranks]

    return run


def mean_losses(ranks: Sequence[Run]) -> list[float]:
    """Return the mean loss of all ranks after every step."""
    steps = zip(*(losses for losses, _ in ranks), strict=True)
    return [sum(each) / len(each) for each in steps]


def is_near(runs: Runs, task: str, scheme: str, bar: float) -> bool:
    """Return whether ``scheme`` ends at the loss of the uncompressed run.

    A loss that is much lower is also wrong: something else was trained.
    """
    whole = final_loss(mean_losses(runs(task, "none")))
    return abs(final_loss(mean_losses(runs(task, scheme))) / whole - 1) <= bar


def pairs(bars: dict[str, float]) -> list[tuple[str, str]]:
    return [(task, each) for task in RUNS for each in bars if each in RUNS[task]]


@pytest.mark.parametrize("task", ["digits", "characters"])
def test_the_uncompressed_run_learns(task: str, runs: Runs) -> None:
    losses = mean_losses(runs(task, "none"))
    assert final_loss(losses) < LEARNED[task] * losses[0]


@pytest.mark.parametrize(("task", "scheme"), pairs(GOOD))
def test_a_compressed_run_ends_where_the_uncompressed_one_does(
    task: str, scheme: str, runs: Runs
) -> None:
    assert is_near(runs, task, scheme, GOOD[scheme])
    ends = {end for _, end in runs(task, scheme)}
    assert len(ends) == 1, "all ranks hold the same bits"
    whole = {end for _, end in runs(task, "none")}
    assert ends != whole, "a scheme that quietly sends everything would pass the rest"


@pytest.mark.parametrize(("task", "bug"), pairs(BAD))
def test_the_bugs_of_other_systems_do_not_pass(task: str, bug: str, runs: Runs) -> None:
    assert not is_near(runs, task, bug, BAD[bug])
