"""Measures an elastic run over machines of speed 4:2:1:1, with shares and equal splits.

Four processes with CPU quotas of control groups (needs root) train alone, then together
with 32 quanta a step. The throughput together is compared with the sum of those alone,
with shares that follow the measured speeds and with equal ones. Then the fastest
machine is slowed to half, and the steps are counted until the shares fit again.

    .venv/bin/python benchmarks/elastic_balance.py
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from machine import describe
from results_file import bar, dated, save
from torch import Tensor, nn
from torch.utils.data import Dataset

from ringleader.identity.cluster_secret import ClusterSecret
from ringleader.identity.credentials import Credentials
from ringleader.identity.secret_value import Secret
from ringleader.testing.run_member import issue_credentials
from ringleader.training.control.run_config import RunConfig
from ringleader.training.control.run_environment import KnownPeers
from ringleader.training.data import progress as progress_module
from ringleader.training.data.balance import Balance, observe
from ringleader.training.data.data_state import DataSpec
from ringleader.training.elastic import start_run
from ringleader.training.options import Options
from ringleader.transport.free_ports import free_ports

SPEEDS = (4, 2, 1, 1)
CORES = (0, 1, 1, 1)
UNIT = 0.18
"""CPU quota of the slowest machine, in cores; 8 of them leave some room on 2 cores."""
PERIOD_US = 10_000
QUANTA, MICRO = 32, 16
ROWS, WIDTH, LAYERS = 64, 256, 3
"""Values per sample, so that a step computes much and sends little (0.8 MB)."""
SETTLED = 5
"""Steps after which shares must fit."""
LIMIT_S = 400.0
GOAL = 0.9


def main() -> None:
    """Measure, print the result and write it to a file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=dated("elastic-balance"))
    parser.add_argument("--steps", type=int, default=25, help="per measurement")
    parser.add_argument("--member", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--group", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.member is not None:
        member(options.member, options.group)
        return
    described, load = describe(), os.getloadavg()[0]
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        groups = stack.enter_context(machines())
        members = stack.enter_context(started(groups))
        found = Bench(folder, groups, members, options.steps).measure()
    save(options.out, {**described, "load_before": load, **found})


class Bench:
    """The measurements on one set of machines."""

    def __init__(
        self,
        folder: Path,
        groups: list[Path],
        members: list[subprocess.Popen[str]],
        steps: int,
    ) -> None:
        self._groups = groups
        self._members = members
        self._quotas = [speed * UNIT for speed in SPEEDS]
        self._steps = steps
        cluster = ClusterSecret(root=Secret(os.urandom(32)))
        self._issued = [issue_credentials(folder, cluster) for _ in SPEEDS]

    def measure(self) -> dict[str, Any]:
        """Run everything in turn, and once more alone to see the drift."""
        self._calibrate()
        alone = self._alone()
        balanced = self._together(balanced=True)
        equal = self._together(balanced=False)
        again = self._alone()
        sums = [sum(alone), sum(again)]
        best = statistics.mean(sums)
        slowed = self._slowed()
        share = balanced["samples_per_s"] / best
        return {
            "cpu_quotas": self._quotas,
            "alone_samples_per_s": [alone, again],
            "sum_alone_samples_per_s": sums,
            "balanced": {**balanced, "efficiency": share},
            "equal": {**equal, "efficiency": equal["samples_per_s"] / best},
            "slowed_to_half": slowed,
            "bars": [
                bar(
                    f">= {GOAL} of the summed throughput alone",
                    round(share, 4),
                    is_met=share >= GOAL,
                ),
                bar(
                    f"slowed to half: shares fit within {SETTLED} steps",
                    slowed["steps"],
                    is_met=slowed["steps"] <= SETTLED,
                ),
            ],
        }

    def _calibrate(self) -> None:
        """Change the quotas until the machines have the speeds 4:2:1:1 alone."""
        found = self._alone()
        unit = found[0] / SPEEDS[0]
        for place, speed in enumerate(SPEEDS):
            self._quotas[place] *= speed * unit / found[place]
            set_quota(self._groups[place], self._quotas[place])

    def _alone(self) -> list[float]:
        """Return the samples per second of each machine alone, all at the same time."""
        for place, speed in enumerate(SPEEDS):
            self._order(place, [], steps=6 * speed)
        logs = [lines_of(member) for member in self._members]
        return [8 * MICRO / statistics.median(step_times([*log])) for log in logs]

    def _together(self, *, balanced: bool) -> dict[str, Any]:
        self._order_all(balanced=balanced)
        logs = [[*lines_of(member)] for member in self._members]
        tables = [line["quotas"] for line in logs[0]]
        assert all([line["quotas"] for line in log] == tables for log in logs)
        times = step_times(logs[0])[SETTLED:]
        return {
            "samples_per_s": QUANTA * MICRO * len(times) / sum(times),
            "step_s": statistics.median(times),
            "quotas_after_each_step": " ".join(tables),
            "noise": logs[0][-1]["noise"],
        }

    def _slowed(self) -> dict[str, Any]:
        """Halve the fastest machine in mid-run; count steps until the shares fit.

        The speeds that they must fit are measured: half a quota is not half the speed.
        """
        set_quota(self._groups[0], self._quotas[0] / 2)
        speeds = self._alone()
        set_quota(self._groups[0], self._quotas[0])
        self._order_all(balanced=True)
        lines = []
        slowed_at = self._steps // 2
        for line in lines_of(self._members[0]):
            lines.append(line)
            if len(lines) == slowed_at:
                set_quota(self._groups[0], self._quotas[0] / 2)
        for member in self._members[1:]:
            deque(lines_of(member), maxlen=0)
        set_quota(self._groups[0], self._quotas[0])
        fits = [_fit(line["quotas"], speeds) for line in lines[slowed_at:]]
        steps = next((n for n, fit in enumerate(fits, 1) if fit >= GOAL), len(fits) + 1)
        return {
            "alone_samples_per_s": speeds,
            "slowed_after_step": slowed_at,
            "steps": steps,
            "fit_after_each_step": " ".join(f"{fit:.2f}" for fit in fits),
            "step_s": " ".join(f"{step_s:.2f}" for step_s in step_times(lines)),
            "quotas_after_each_step": " ".join(line["quotas"] for line in lines),
            "last_reason": lines[-1]["reason"],
        }

    def _order_all(self, *, balanced: bool) -> None:
        ports = free_ports(len(SPEEDS))
        for place in range(len(SPEEDS)):
            self._order(place, ports, steps=self._steps, balanced=balanced)

    def _order(
        self, place: int, ports: list[int], *, steps: int, balanced: bool = True
    ) -> None:
        others = [port for other, port in enumerate(ports) if other != place]
        order = {
            "credentials": str(self._issued[place][0]),
            "nodes": [node for _, node in self._issued],
            "port": ports[place] if ports else 0,
            "peers": ",".join(f"127.0.0.1:{port}" for port in others),
            "size": len(ports) or 1,
            "quanta": QUANTA if ports else 8,
            "steps": steps,
            "balanced": balanced,
        }
        pipe = self._members[place].stdin
        assert pipe is not None
        pipe.write(json.dumps(order) + "\n")
        pipe.flush()


def _fit(text: str, speeds: Sequence[float]) -> float:
    """Return the best step time with these speeds, as a share of that of the quotas."""
    quotas = [int(number) for number in text.split(":")]
    slowest = max(n / speed for n, speed in zip(quotas, speeds, strict=True))
    return sum(quotas) / sum(speeds) / slowest


def lines_of(member: subprocess.Popen[str]) -> Iterator[dict[str, Any]]:
    """Yield a line for each step of the order that a member carries out."""
    assert member.stdout is not None
    for text in member.stdout:
        if text == "done\n":
            return
        if text.startswith("{"):
            yield json.loads(text)
    raise RuntimeError(f"a member ended with {member.wait(10)}")


def step_times(lines: Sequence[dict[str, Any]]) -> list[float]:
    """Return the seconds between the steps."""
    moments = [line["at_s"] for line in lines]
    return [b - a for a, b in pairwise(moments)]


@contextmanager
def machines() -> Iterator[list[Path]]:
    """Make a control group per machine, which comes before all other programs."""
    top = Path("/sys/fs/cgroup/cpu")
    top = top if top.is_dir() else Path("/sys/fs/cgroup")
    groups = [top / f"ringleader-balance-{place}" for place in range(len(SPEEDS))]
    try:
        for group, speed in zip(groups, SPEEDS, strict=True):
            group.mkdir()
            if (group / "cpu.shares").exists():
                (group / "cpu.shares").write_text(str(1 << 18))
            else:
                (group / "cpu.weight").write_text("10000")
            set_quota(group, speed * UNIT)
        yield groups
    finally:
        for group in groups:
            if group.is_dir():
                group.rmdir()


@contextmanager
def started(groups: list[Path]) -> Iterator[list[subprocess.Popen[str]]]:
    """Start a process per machine; they end with their input."""
    pipe = subprocess.PIPE
    members = [
        subprocess.Popen(
            [sys.executable, __file__, f"--member={place}", f"--group={group}"],
            stdin=pipe,
            stdout=pipe,
            text=True,
        )
        for place, group in enumerate(groups)
    ]
    try:
        yield members
        for each in members:
            assert each.stdin is not None
            each.stdin.close()
            each.wait(LIMIT_S)
    finally:
        for each in members:
            each.kill()
            each.wait()


def set_quota(group: Path, cores: float) -> None:
    """Let a control group use this much of a core."""
    allowed_us = int(cores * PERIOD_US)
    if (group / "cpu.max").exists():
        (group / "cpu.max").write_text(f"{allowed_us} {PERIOD_US}")
    else:
        (group / "cpu.cfs_period_us").write_text(str(PERIOD_US))
        (group / "cpu.cfs_quota_us").write_text(str(allowed_us))


def member(place: int, group: Path) -> None:
    """Be one machine: carry out the orders that come on stdin."""
    os.sched_setaffinity(0, {CORES[place]})
    torch.set_num_threads(1)
    (group / "cgroup.procs").write_text(str(os.getpid()))
    for line in sys.stdin:
        train(json.loads(line))
        print("done", flush=True)
    # So that the control group can be removed.
    (group.parent / "cgroup.procs").write_text(str(os.getpid()))


def train(order: dict[str, Any]) -> None:
    """Train as ordered, and print a line for each step."""
    progress_module.observe = observe if order["balanced"] else keep
    torch.manual_seed(3)
    layers = [nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()) for _ in range(LAYERS)]
    model = nn.Sequential(*layers)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    data = Samples()
    spec = DataSpec(
        num_samples=order["steps"] * order["quanta"] * MICRO,
        global_batch=order["quanta"] * MICRO,
        micro_batch=MICRO,
    )
    config = None
    if order["size"] > 1:
        config = RunConfig(
            run="balance",
            credentials=Credentials.from_file(Path(order["credentials"])),
            port=order["port"],
            peers=order["peers"],
            source=KnownPeers(order["size"], is_joiner=False),
        )
    run = start_run(model, optimizer, data, spec, Options(), config)
    for x in run:
        run.backward(nn.functional.mse_loss(model(x), x))
        if run.step():
            balance = run._team.progress.balance
            quotas = balance.quotas_for(spec.num_quanta, run.members)
            line = {
                "at_s": time.monotonic(),
                "quotas": ":".join(str(quotas.get(n, 0)) for n in order["nodes"]),
                "reason": balance.reason,
                "noise": balance.noise,
            }
            print(json.dumps(line), flush=True)


def keep(balance: Balance, *_: object) -> Balance:
    """Measure nothing, so that all machines get the same."""
    return balance


class Samples(Dataset[Tensor]):
    """The same samples on all machines, of which some are alike."""

    def __init__(self) -> None:
        generator = torch.Generator().manual_seed(1)
        self._values = torch.randn(64, ROWS, WIDTH, generator=generator)

    def __len__(self) -> int:
        return 1 << 20

    def __getitem__(self, index: int) -> Tensor:
        return self._values[index % len(self._values)]


if __name__ == "__main__":
    main()
