"""A cluster of machines as one worker of a server, also when they are killed."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx2
import numpy as np
import pytest
import torch

from ringleader.errors import ConfigError
from ringleader.paramserver.evaluation import load_model
from ringleader.paramserver.server.storage.checkpoint import WEIGHTS
from ringleader.paramserver.tasks.batch_order import batch_indices
from ringleader.paramserver.tasks.loading import load_task
from ringleader.paramserver.worker.cluster import Cluster
from tests.kit.commands import Run, command, link_file, output_of
from tests.kit.ranks_without_agent import environments
from tests.kit.warm_python import WarmProcess, WarmPython

SIZE, ROUNDS, STEPS, BATCH = 3, 30, 7, 11
WITHIN_S = 300.0

TASK = """
import time
from pathlib import Path
import torch
from torch import nn

GATE = Path(__file__).with_name("gate")

def model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(9, 13), nn.Tanh(), nn.Linear(13, 3))

def dataset(split):
    made = torch.Generator().manual_seed(1)
    x = torch.randn(101, 9, generator=made)
    return x, (x[:, :3] + 0.1 * torch.randn(101, 3, generator=made)).argmax(1)

def loss(model, batch):
    while GATE.exists():  # the test holds all machines in the middle of a round
        time.sleep(0.01)
    x, y = batch
    return nn.functional.cross_entropy(model(x), y)

def optimizer(model):
    return torch.optim.AdamW(model.parameters(), lr=0.01)
"""


def test_it_must_be_started_on_all_machines() -> None:
    with pytest.raises(ConfigError, match="ringleader run --survive -m ringleader"):
        Cluster.open()


def reference(path: Path) -> dict[str, torch.Tensor]:
    """One process in float64: AdamW inside a round, Nesterov between rounds."""
    task = load_task(str(path))
    x, y = task.samples("train").batch(torch.arange(101))
    model = task.model().double()
    theta = [p.detach().clone() for p in model.parameters()]
    inner = task.optimizer(model)
    outer = torch.optim.SGD(theta, lr=0.7, momentum=0.9, nesterov=True)
    for number in range(ROUNDS * STEPS):
        chosen = batch_indices(0, number, BATCH, len(x))
        inner.zero_grad()
        task.loss(model, (x[chosen].double(), y[chosen])).backward()  # type: ignore[no-untyped-call]
        inner.step()
        if (number + 1) % STEPS == 0:
            for start, moved in zip(theta, model.parameters(), strict=True):
                start.grad = start - moved.detach()
            outer.step()
            with torch.no_grad():
                for start, moved in zip(theta, model.parameters(), strict=True):
                    moved.copy_(start)
    return dict(zip((n for n, _ in model.named_parameters()), theta, strict=True))


def start_ranks(
    warm: WarmPython, folder: Path, *flags: str | Path
) -> list[WarmProcess]:
    """Start a process for each machine of the cluster, without agents."""
    words = command("work", "--cluster", *flags)
    return [
        warm.popen(*words, env={**os.environ, "OMP_NUM_THREADS": "1", **each})
        for each in environments(folder, SIZE)
    ]


def wait_until(is_true: Callable[[], bool], what: str) -> None:
    deadline_s = time.monotonic() + WITHIN_S
    while not is_true():
        assert time.monotonic() < deadline_s, what
        time.sleep(0.01)


def status_of(url: str) -> dict[str, Any]:
    found: dict[str, Any] = httpx2.get(
        f"{url}/v1/status", trust_env=False, timeout=60
    ).json()
    return found


def kill_in_a_round(victim: WarmProcess, gate: Path, url: str) -> None:
    """Kill a process when two more rounds were closed, while all of them wait."""
    at = status_of(url)["version"] + 2
    wait_until(lambda: status_of(url)["version"] >= at, "no round ends")
    gate.touch()
    os.kill(victim.pid, signal.SIGKILL)
    victim.communicate()
    gate.unlink()


@pytest.mark.slow
def test_a_cluster_is_one_worker_also_when_its_machines_are_killed(
    tmp_path: Path, running: Run, warm_python: WarmPython
) -> None:
    """A follower is lost, then the leader: the values are those of one process."""
    task, gate, out = tmp_path / "taught.py", tmp_path / "gate", tmp_path / "run"
    task.write_text(TASK)
    flags = ["--mode", "rounds", "--workers", 1, "--rounds", ROUNDS, "--steps", STEPS]
    flags += ["--batch-size", BATCH, "--codec", "none", "--http", "--port", 0]
    with ExitStack() as stack:
        serving = stack.enter_context(running("serve", task, *flags, "--out", out))
        link = link_file(serving, out)
        url = link.read_text().partition("/#")[0].strip()
        ranks = start_ranks(
            warm_python, tmp_path, "--server-file", link, "--task", task
        )
        for rank in ranks:
            stack.callback(rank.communicate)
            stack.callback(rank.kill)
        kill_in_a_round(ranks[2], gate, url)
        kill_in_a_round(ranks[0], gate, url)
        said = output_of(ranks[1], WITHIN_S)
        assert "the leader was lost; rank 1 goes on" in said
        assert "joined as w1" in said
        assert "joined as w2" not in said, "the successor is the same worker"
        output_of(serving, WITHIN_S)
    trained = dict(load_model(load_task(str(task)), out / WEIGHTS).named_parameters())
    for name, value in reference(task).items():
        found = trained[name].detach().numpy()
        assert np.abs(found - value.numpy()).max() < 1e-4, name
