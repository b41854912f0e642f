"""Compressed gradients train as well as uncompressed ones; defective schemes fail.

Two real tasks are trained by two processes with every scheme, from the same seed. What
the systems that we replace did to gradients is trained in the same way, and must fail
the same check. Three seeds, longer runs and sparser gradients are in
benchmarks/compression.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import pytest
import torch
import torch._dynamo  # in the fork server, not in every rank, in 2 s

from ringleader.compression import compressor
from ringleader.groups.group import Group
from ringleader.testing.processes import ForkServer, Ready, spawn_ranks
from tests.kit.compression_bugs import BUGS
from tests.kit.training_tasks import Task, characters, digits, final_loss, learn

pytestmark = pytest.mark.slow

SIZE = 2
WITHIN_S = 500.0
"""It takes half a minute on an idle machine; the machine may be busy."""

CODEC_BAR, SPARSE_BAR = 0.002, 0.02
"""Largest relative difference from the uncompressed final loss."""

GOOD = {
    "bf16": CODEC_BAR,
    "fp16": CODEC_BAR,
    "int8": CODEC_BAR,
    "powersgd:4": SPARSE_BAR,
    "topk:0.05": SPARSE_BAR,
}
BAD = {
    "truncating int8": CODEC_BAR,
    "1/p with feedback": SPARSE_BAR,
    "residual dropped, top-k": SPARSE_BAR,
    "residual dropped, one bit": SPARSE_BAR,
}
RUNS = {
    "digits": ("none", *GOOD, *BAD),
    "characters": ("none", "int8", "powersgd:4", "topk:0.05", "truncating int8"),
}
"""The tasks and schemes; the text task takes longer and has fewer schemes."""

LEARNED = {"digits": 0.1, "characters": 0.7}
"""How much of the first loss may be left, so that the comparison means something. Of
text, less than half would need more than a few seconds."""

Run = tuple[list[float], bytes]
"""The loss of one rank after every step, and its parameters at the end."""


def make_task(name: str) -> Task:
    if name == "digits":
        return replace(digits(), steps=200)
    return characters(width=16, layers=1, context=16).shortened(200)


def train(group: Group, _ready: Ready, task_name: str) -> dict[str, Run]:
    """Train once with every scheme, on this rank."""
    task = make_task(task_name)
    return {scheme: train_with(scheme, task, group) for scheme in RUNS[task_name]}


def train_with(scheme: str, task: Task, group: Group) -> Run:
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


def mean_losses(ranks: Sequence[Run]) -> list[float]:
    """Return the mean loss of all ranks after every step."""
    steps = zip(*(losses for losses, _ in ranks), strict=True)
    return [sum(each) / len(each) for each in steps]


@pytest.mark.parametrize("task", RUNS)
def test_a_compressed_run_ends_where_the_uncompressed_one_does_and_a_bug_elsewhere(
    task: str, fork_server: ForkServer
) -> None:
    """One world trains with all schemes: a process spends seconds on its imports."""
    with spawn_ranks(
        SIZE, train, task, transport="shm", fork_server=fork_server
    ) as ranks:
        ended = [rank.result(WITHIN_S) for rank in ranks]
    runs = {scheme: [each[scheme] for each in ended] for scheme in RUNS[task]}
    whole = mean_losses(runs["none"])
    assert final_loss(whole) < LEARNED[task] * whole[0], "the uncompressed run learns"
    # A loss that is much lower is also wrong: something else was trained.
    off = {
        scheme: abs(final_loss(mean_losses(run)) / final_loss(whole) - 1)
        for scheme, run in runs.items()
    }
    good, bad = (runs.keys() & bars.keys() for bars in (GOOD, BAD))
    assert [s for s in good if off[s] > GOOD[s]] == [], off
    assert [s for s in bad if off[s] <= BAD[s]] == [], off
    for scheme in good:
        ends = {end for _, end in runs[scheme]}
        assert len(ends) == 1, f"{scheme}: all ranks hold the same bits"
        whole_end = {end for _, end in runs["none"]}
        assert ends != whole_end, f"{scheme} quietly sends everything"
