"""Compares a step of ringleader.elastic without failures with one of plain DDP.

    .venv/bin/python benchmarks/elastic_overhead.py [--members 2] [--blocks 30]

The same model and data over Ringleader in three ways: plain DDP, ringleader.elastic,
and DDP as ``ringleader run --survive`` runs it in an unmodified script. Each has its
own processes; they train in alternating blocks of steps while the others wait, so that
a change in the load of the machine meets all. Bars: a step of ringleader.elastic at
most 1.03x that of DDP, its memory at most that of DDP and one gradient buffer: the
peak of the resident memory since before the model was made, with a larger model.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median

from elastic_overhead_member import Place, member, model
from machine import describe
from results_file import bar, dated, save

from ringleader.identity.cluster_secret import ClusterSecret
from ringleader.identity.secret_value import Secret
from ringleader.testing.run_member import issue_credentials
from ringleader.transport.free_ports import free_ports

STEPS = 10
"""Steps of a block."""
WIDTH, DEPTH = 512, 12
MEMORY_WIDTH, MEMORY_DEPTH, MEMORY_STEPS = 1024, 24, 4
"""Where the memory is measured: 25 million parameters, a gradient of 101 MB."""
BAR = 1.03
SLACK = 0.05
"""Part of a gradient that the measured memory may vary."""
KINDS = ("ddp", "elastic", "survive")
LIMIT_S = 600.0


class Team:
    """The processes that train in one way."""

    def __init__(self, kind: str, chosen: argparse.Namespace) -> None:
        self._kind = kind
        self._chosen = chosen
        self._pipes: list[Connection] = []
        self.times: list[float] = []
        self.peaks: list[int] = []

    def start(self, folder: Path, width: int, depth: int) -> None:
        """Start them."""
        cluster = ClusterSecret(root=Secret(os.urandom(32)))
        size, forks = self._chosen.members, get_context("fork")
        ports = free_ports(size + 1)
        for rank in range(size):
            file, _ = issue_credentials(folder, cluster)
            place = Place(
                *(self._kind, rank, size, file, ports[1:], ports[0]),
                *(width, depth, self._chosen.transport),
            )
            ours, theirs = forks.Pipe()
            forks.Process(target=member, args=(place, theirs), daemon=True).start()
            theirs.close()
            self._pipes.append(ours)

    def run(self, steps: int) -> None:
        """Train some steps; the first process tells the times, all their memory."""
        for pipe in self._pipes:
            pipe.send(steps)
        found = []
        for pipe in self._pipes:
            if not pipe.poll(LIMIT_S):
                raise TimeoutError(f"{self._kind}: no block within {LIMIT_S:g} s")
            found.append(pipe.recv())
        self.times += found[0][0]
        self.peaks = [bytes_ for _, bytes_ in found]

    def close(self) -> None:
        """Let them end."""
        for pipe in self._pipes:
            pipe.send(0)
            pipe.close()


def time_steps(chosen: argparse.Namespace) -> dict[str, list[float]]:
    """Return the times of the steps of each kind."""
    with tempfile.TemporaryDirectory() as folder:
        teams = {kind: Team(kind, chosen) for kind in KINDS}
        for team in teams.values():
            team.start(Path(folder), WIDTH, DEPTH)
        for block in range(chosen.blocks + 1):
            for team in teams.values():
                team.run(STEPS)
                if block == 0:  # it warms up
                    team.times.clear()
        for team in teams.values():
            team.close()
        return {kind: team.times for kind, team in teams.items()}


def measure_memory(chosen: argparse.Namespace) -> dict[str, int]:
    """Return the peak of a process of each kind."""
    found = {}
    for kind in KINDS:
        with tempfile.TemporaryDirectory() as folder:
            team = Team(kind, chosen)
            team.start(Path(folder), MEMORY_WIDTH, MEMORY_DEPTH)
            team.run(MEMORY_STEPS)
            team.close()
            found[kind] = max(team.peaks)
    return found


def main() -> None:
    """Run it, print the comparison and write the result."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--members", type=int, default=2)
    parser.add_argument("--blocks", type=int, default=30)
    parser.add_argument("--transport", default="auto")
    parser.add_argument("--out", type=Path, default=dated("elastic-overhead"))
    chosen = parser.parse_args()
    load = round(os.getloadavg()[0], 2)
    peaks = measure_memory(chosen)
    times = time_steps(chosen)
    step_s = {kind: median(each) for kind, each in times.items()}
    ratios = {kind: round(step_s[kind] / step_s["ddp"], 4) for kind in KINDS}
    large = model(MEMORY_WIDTH, MEMORY_DEPTH)
    gradient = sum(p.nbytes for p in large.parameters())
    more = {k: round((peaks[k] - peaks["ddp"]) / gradient, 3) for k in KINDS}
    results = {
        **describe(),
        "load_before": load,
        "members": chosen.members,
        "transport": chosen.transport,
        "parameters": sum(p.numel() for p in model(WIDTH, DEPTH).parameters()),
        "steps": len(times["ddp"]),
        "step_ms": {kind: round(each * 1e3, 3) for kind, each in step_s.items()},
        "ratio_to_ddp": ratios,
        "memory": {
            "parameters": sum(p.numel() for p in large.parameters()),
            "gradient_mb": round(gradient / 1e6, 1),
            "peak_mb": {kind: round(each / 1e6, 1) for kind, each in peaks.items()},
            "gradients_more_than_ddp": more,
        },
        "bars": [
            bar(
                f"step of elastic <= {BAR}x DDP",
                ratios["elastic"],
                is_met=ratios["elastic"] <= BAR,
            ),
            bar(
                "memory of elastic <= DDP + one gradient buffer",
                f"{more['elastic']} gradients more",
                is_met=more["elastic"] <= 1 + SLACK,
            ),
        ],
    }
    print(json.dumps(results, indent=1))
    save(chosen.out, results)


if __name__ == "__main__":
    main()
