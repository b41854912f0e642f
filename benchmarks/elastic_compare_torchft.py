"""The kills of elastic_compare.py for torchft, where that can be installed.

    pip install torchft-nightly
    python benchmarks/elastic_compare_torchft.py --kills 10

torchft has builds for x86-64 only; elsewhere this ends with status 2 and says so. Three
replicas train a model of 1 million parameters with torchft's DDP over Gloo and default
settings; the lighthouse runs in this process. Every few seconds one replica gets
SIGKILL and is started again. Measured on the two others: time from the kill to the next
committed step, steps that were dropped, and the longest time without a committed step
while the replica came back. ``--raw FILE`` summarizes measurements made elsewhere.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import platform
import random
import statistics
import subprocess
import sys
import tempfile
import time
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import torch
from machine import describe
from results_file import dated, save
from torch import nn

SIZE, WIDTH, BATCH = 3, 1000, 32
LIMIT_S = 120.0


class Step(NamedTuple):
    """One line of a replica's log."""

    at_s: float
    is_committed: bool


# -- a replica -------------------------------------------------------------------------


def train(lighthouse: str, name: str, log: Path) -> None:
    """Train until killed; write a line for each step."""
    import torchft

    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = nn.Linear(WIDTH, WIDTH)
    inner = torch.optim.SGD(model.parameters(), lr=1e-3)
    store = torch.distributed.TCPStore("127.0.0.1", 0, is_master=True)

    def load(state: dict[str, Any]) -> None:
        model.load_state_dict(state["model"])
        inner.load_state_dict(state["optimizer"])

    manager = torchft.Manager(
        pg=torchft.ProcessGroupGloo(),
        load_state_dict=load,
        state_dict=lambda: {
            "model": model.state_dict(),
            "optimizer": inner.state_dict(),
        },
        min_replica_size=1,
        rank=0,
        world_size=1,
        store_addr="127.0.0.1",
        store_port=store.port,
        lighthouse_addr=lighthouse,
        replica_id=name,
    )
    parallel = torchft.DistributedDataParallel(manager, model)
    with log.open("w", buffering=1) as lines:
        while True:
            x = torch.randn(BATCH, WIDTH)
            manager.start_quorum()
            inner.zero_grad()
            nn.functional.mse_loss(parallel(x), x).backward()
            is_committed = manager.should_commit()
            if is_committed:
                inner.step()
            lines.write(f"{time.monotonic()} {int(is_committed)}\n")


# -- the kills -------------------------------------------------------------------------


class Replicas:
    """The replicas on this machine, each started again after its kill."""

    def __init__(self, lighthouse: str, folder: Path) -> None:
        self._lighthouse = lighthouse
        self._folder = folder
        self._lives: dict[int, tuple[subprocess.Popen[bytes], Path]] = {}
        self._count = 0

    def start(self, index: int) -> None:
        """Start a replica."""
        self._count += 1
        log = self._folder / f"{self._count}.log"
        name = f"r{self._count}_"
        process = subprocess.Popen(
            [sys.executable, __file__, "--replica", name, self._lighthouse, str(log)],
            env={**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""},
            stderr=(self._folder / f"{self._count}.err").open("w"),
        )
        self._lives[index] = process, log

    def kill(self, index: int) -> float:
        """Kill a replica and return when."""
        process, _ = self._lives[index]
        at_s = time.monotonic()
        process.kill()
        process.wait()
        return at_s

    def steps(self, index: int) -> list[Step]:
        """Return the steps of a replica so far."""
        log = self._lives[index][1]
        text = log.read_text() if log.exists() else ""
        rows = [line.split() for line in text.splitlines()]
        return [Step(float(r[0]), r[1] == "1") for r in rows if len(r) == 2]

    def wait_committed(self, index: int, after_s: float, count: int) -> list[float]:
        """Wait for some committed steps after a moment; return their times."""
        until_s = time.monotonic() + LIMIT_S
        while time.monotonic() < until_s:
            steps = self.steps(index)
            found = [s.at_s for s in steps if s.is_committed and s.at_s > after_s]
            if len(found) >= count:
                return found
            time.sleep(0.1)
        raise TimeoutError(f"replica {index}: no {count} steps within {LIMIT_S:g} s")

    def close(self) -> None:
        """Kill all."""
        for process, _ in self._lives.values():
            process.kill()
            process.wait()


def longest_gap_s(moments: list[float]) -> float:
    """Return the longest time between two moments."""
    return max((b - a for a, b in pairwise(moments)), default=0.0)


def kill_one(replicas: Replicas, chosen: random.Random) -> dict[str, list[float]]:
    """Kill one replica, start it again, and return what the others saw."""
    time.sleep(chosen.uniform(1, 2))
    victim = chosen.randrange(SIZE)
    others = [index for index in range(SIZE) if index != victim]
    killed_s = replicas.kill(victim)
    after = [replicas.wait_committed(index, killed_s, 10) for index in others]
    dropped = [
        sum(s.at_s > killed_s and not s.is_committed for s in replicas.steps(index))
        for index in others
    ]
    started_s = time.monotonic()
    replicas.start(victim)
    replicas.wait_committed(victim, started_s, 5)
    rejoin = [replicas.wait_committed(index, started_s, 2) for index in others]
    return {
        "first": [moments[0] - killed_s for moments in after],
        "dropped": dropped,
        "rejoin_stall": [longest_gap_s(moments) for moments in rejoin],
    }


def measure(kills: int, seed: int) -> list[dict[str, list[float]]]:
    """Return what each kill has cost."""
    import torchft.coordination

    server = torchft.coordination.LighthouseServer("127.0.0.1:0", min_replicas=1)
    with tempfile.TemporaryDirectory() as folder:
        replicas, chosen = Replicas(server.address(), Path(folder)), random.Random(seed)
        try:
            for index in range(SIZE):
                replicas.start(index)
            for index in range(SIZE):
                replicas.wait_committed(index, 0, 20)
            found = []
            for _ in range(kills):
                found.append(kill_one(replicas, chosen))
                print(json.dumps(found[-1]), flush=True)
            return found
        finally:
            replicas.close()


def summary(found: list[dict[str, list[float]]]) -> dict[str, object]:
    """Return the figures that elastic_compare.py gives of the others."""
    next_s = [max(each["first"]) for each in found]
    rejoin_s = [max(each["rejoin_stall"]) for each in found]
    return {
        "kills": len(found),
        "next_update_s": {
            "median": round(statistics.median(next_s), 3),
            "max": round(max(next_s), 3),
            "all": [round(each, 3) for each in next_s],
        },
        "updates_dropped": int(sum(max(each["dropped"]) for each in found)),
        "stall_of_others_at_rejoin_s": {"max": round(max(rejoin_s), 3)},
        "measurements": found,
    }


def main() -> None:
    """Measure, print and save the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--raw", type=Path, help="summarize these measurements")
    parser.add_argument("--from", dest="origin", help="with --raw: where they are from")
    parser.add_argument("--out", type=Path, default=dated("elastic-compare-torchft"))
    parser.add_argument("--replica", nargs=3, help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.replica:
        name, lighthouse, log = chosen.replica
        train(lighthouse, name, Path(log))
    elif chosen.raw:
        found = summary(json.loads(chosen.raw.read_text()))
        save(chosen.out, {"from": chosen.origin, "torchft": found})
    elif importlib.util.find_spec("torchft") is None:
        print(f"torchft is not installed; it has no build for {platform.machine()}")
        print("unless that is x86_64: pip install torchft-nightly")
        sys.exit(2)
    else:
        found = summary(measure(chosen.kills, chosen.seed))
        save(chosen.out, {**describe(), "torchft": found})


if __name__ == "__main__":
    main()
