"""The same task and kills for ringleader.elastic and for torchrun with checkpoints.

    .venv/bin/python benchmarks/elastic_compare.py --kills 10

Three members train a small model with a step of about 50 ms; every few seconds one of
them gets SIGKILL at a random moment. torchrun runs as on three machines (three agents
with one worker each, c10d rendezvous, gloo, DDP) and its program saves a checkpoint
every 100 steps. Measured: time from the kill to the next applied update, time until
the run is further than before the kill, and updates that were lost and done again.
"Worker" kills a worker process; "machine" kills the agent, too; "rank 0" is the
machine of the rendezvous. torchft: elastic_compare_torchft.py.

The results are saved after every kill. ``--only NAME`` runs one of the two and keeps
what today's file has of the other.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from machine import describe
from results_file import bar, dated, save

from ringleader.transport.free_ports import free_ports

sys.path.append(str(Path(__file__).parents[1]))  # for tests.kit
from tests.kit.elastic_world import Hang, World
from tests.kit.endless_task import GLOBAL_BATCH, MICRO_BATCH

SIZE = 3
PAUSE_S = 0.15
"""Sleep of one step, shared by the members."""
LIMIT_S = 150.0
"""A run without a step for so long has ended: agents of torchrun that count restarts
differently wait for each other for half an hour (seen with torch 2.13, 2026-11-17)."""
SCRIPT = Path(__file__).with_name("elastic_compare_ddp.py")


@dataclass(slots=True)
class Outcome:
    """What the kills of one kind have cost."""

    next_update_s: list[float] = field(default_factory=list)
    further_s: list[float] = field(default_factory=list)
    updates_lost: list[int] = field(default_factory=list)
    ended: int = 0
    """Kills after which nobody trained any more."""

    @property
    def kills(self) -> int:
        """All kills, also those that ended a run."""
        return len(self.next_update_s) + self.ended

    def summary(self) -> dict[str, object]:
        """Return medians and maxima."""
        lost = sum(self.updates_lost)
        return {
            "kills": self.kills,
            "runs_ended": self.ended,
            "next_update_s": _spread(self.next_update_s),
            "further_than_before_s": _spread(self.further_s),
            "updates_lost": lost,
            "samples_computed_again": lost * GLOBAL_BATCH,
        }


def _spread(values: list[float]) -> dict[str, float]:
    if not values:
        return {}
    return {"median": round(statistics.median(values), 2), "max": round(max(values), 2)}


# -- torchrun ------------------------------------------------------------------------


class Torchrun:
    """Three torchrun agents on this machine."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.agents: dict[int, subprocess.Popen[bytes]] = {}
        self._port = free_ports(1)[0]

    def start(self, index: int) -> None:
        """Start the agent of a machine."""
        self.agents[index] = subprocess.Popen(
            [
                *(sys.executable, "-m", "torch.distributed.run"),
                *("--nnodes", f"2:{SIZE}", "--nproc-per-node", "1"),
                *("--rdzv-backend", "c10d", "--rdzv-id", "compare"),
                *("--rdzv-endpoint", f"127.0.0.1:{self._port}"),
                *("--rdzv-conf", f"is_host={int(index == 0)}"),
                *("--local-addr", "127.0.0.1", "--max-restarts", "1000"),
                *(str(SCRIPT), str(self.folder), str(PAUSE_S)),
            ],
            env={**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"},
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def worker(self, index: int) -> int | None:
        """Return the process id of a machine's worker, if it has one now."""
        agent = self.agents[index].pid
        children = Path(f"/proc/{agent}/task/{agent}/children").read_text().split()
        return int(children[0]) if children else None

    def steps(self) -> list[tuple[float, int]]:
        """Return time and version of all steps of all workers, in order."""
        found = []
        for path in self.folder.glob("steps-*"):
            for line in path.read_text().splitlines():
                moment, _, version = line.partition(" ")
                if version:
                    found.append((float(moment), int(version)))
        return sorted(found)

    def close(self) -> None:
        """Kill everything that is left."""
        for index, agent in self.agents.items():
            with contextlib.suppress(OSError):
                if worker := self.worker(index):
                    os.kill(worker, signal.SIGKILL)
            with contextlib.suppress(OSError):
                os.killpg(agent.pid, signal.SIGKILL)
            agent.wait()


def wait_for(run: Torchrun, after_s: float, above: int, until_s: float) -> float | None:
    """Return when a step above a version was applied after a moment."""
    while time.monotonic() < until_s:
        found = [s for s, v in run.steps() if s > after_s and v > above]
        if found:
            return found[0]
        time.sleep(0.05)
    return None


def kill_torchrun(kind: str, kills: int, seed: int) -> Iterator[Outcome]:
    """Measure kills of one kind; a machine that was killed starts again after 10 s.

    A run that ended is followed by a new one. Yields the outcome after each kill.
    """
    outcome, chosen = Outcome(), random.Random(seed)
    while outcome.kills < kills:
        with tempfile.TemporaryDirectory() as folder:
            run = Torchrun(Path(folder))
            try:
                for index in range(SIZE):
                    run.start(index)
                goes_on = True
                while goes_on and outcome.kills < kills:
                    goes_on = _kill_one(run, kind, chosen, outcome)
                    yield outcome
            finally:
                run.close()


def _kill_one(
    run: Torchrun, kind: str, chosen: random.Random, outcome: Outcome
) -> bool:
    began_s = time.monotonic()
    if wait_for(run, began_s, 0, began_s + LIMIT_S) is None:
        if not run.steps():
            sys.exit(f"torchrun: no step within {LIMIT_S:g} s of its start")
        outcome.ended += 1
        return False
    time.sleep(chosen.uniform(2, 7))
    index = 0 if kind == "rank 0" else chosen.randrange(1, SIZE)
    while (worker := run.worker(index)) is None:
        if time.monotonic() > began_s + LIMIT_S:
            outcome.ended += 1
            return False
        time.sleep(0.05)
    if kind != "worker":
        os.killpg(run.agents[index].pid, signal.SIGKILL)
    with contextlib.suppress(ProcessLookupError):
        os.kill(worker, signal.SIGKILL)
    killed_s = time.monotonic()
    before = max(v for s, v in run.steps() if s <= killed_s)
    until_s = killed_s + LIMIT_S
    next_s = wait_for(run, killed_s + 0.3, 0, until_s)
    further_s = wait_for(run, killed_s + 0.3, before, until_s)
    if next_s is None or further_s is None:
        outcome.ended += 1
        return False
    resumed = next(v for s, v in run.steps() if s == next_s)
    outcome.next_update_s.append(next_s - killed_s)
    outcome.further_s.append(further_s - killed_s)
    outcome.updates_lost.append(max(0, before - resumed + 1))
    if kind != "worker":
        time.sleep(max(0.0, killed_s + 10 - time.monotonic()))
        run.agents[index].wait()
        run.start(index)
    return True


# -- ours ----------------------------------------------------------------------------


def kill_ours(kind: str, kills: int, seed: int) -> Iterator[Outcome]:
    """Measure kills of the leader ("rank 0") or of another member.

    Yields the outcome after each of them.
    """
    outcome, chosen = Outcome(), random.Random(seed)
    pause_s = PAUSE_S / (GLOBAL_BATCH / MICRO_BATCH)
    with tempfile.TemporaryDirectory() as folder, World(Path(folder), SIZE) as world:
        for index in range(SIZE):
            world.start(index, joins=False)
        for _ in range(kills):
            world.wait_complete()
            for member in world.alive.values():
                member.tell(pause_s=pause_s)
            until_s = time.monotonic() + chosen.uniform(2, 7)
            while time.monotonic() < until_s:
                world.handle(0.05)
            first = world.nodes.index(next(iter(world.alive.values())).members[0])
            others = [i for i in world.alive if i != first]
            index = first if kind == "rank 0" else chosen.choice(others)
            killed_s = world.kill(world.alive[index])
            before = max(m.version for m in world.alive.values())
            try:
                after_s = world.wait_for_step(
                    killed_s, [*world.alive.values()], without=[world.nodes[index]]
                )
            except Hang:
                outcome.ended += 1
                yield outcome
                break
            outcome.next_update_s.append(after_s - killed_s)
            outcome.further_s.append(after_s - killed_s)
            lost = before - min(m.version for m in world.alive.values())
            outcome.updates_lost.append(max(0, lost))
            yield outcome
            while time.monotonic() < killed_s + 10:
                world.handle(0.05)
            world.start(index, joins=True)
        world.check_ledger()


MEASURES: dict[
    str, tuple[tuple[str, ...], Callable[[str, int, int], Iterator[Outcome]]]
] = {
    "ringleader": (("machine", "rank 0"), kill_ours),
    "torchrun": (("worker", "machine", "rank 0"), kill_torchrun),
}
"""The kinds of kills of each competitor, and what carries them out."""


def main() -> None:
    """Measure both, print and save the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--only", choices=[*MEASURES], metavar="NAME")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, default=dated("elastic-compare"))
    chosen = parser.parse_args()
    load = round(os.getloadavg()[0], 2)
    names = [name for name in MEASURES if chosen.only in (None, name)]
    found = {} if chosen.only is None else earlier(chosen.out)
    found |= {name: {} for name in names}
    results: dict[str, object] = {**describe(), "load_before": load}
    for name in names:
        kinds, measure = MEASURES[name]
        for kind in kinds:
            for outcome in measure(kind, chosen.kills, chosen.seed):
                found[name][kind] = outcome.summary()
                save(chosen.out, {**results, **found})
            print(name, kind, json.dumps(found[name].get(kind)), flush=True)
    if all(len(found.get(name, {})) == len(MEASURES[name][0]) for name in MEASURES):
        results["bars"] = judge(found)
    save(chosen.out, {**results, **found})


def earlier(file: Path) -> dict[str, dict[str, Any]]:
    """Return what a file has of each competitor."""
    saved = json.loads(file.read_text()) if file.exists() else {}
    return {name: saved[name] for name in MEASURES if name in saved}


def judge(found: dict[str, dict[str, Any]]) -> list[dict[str, object]]:
    """Return the comparison as bars: we lose nothing, and are the faster one."""
    ours, theirs = found["ringleader"], found["torchrun"]
    lost = sum(each["updates_lost"] for each in ours.values())
    ended = sum(each["runs_ended"] for each in ours.values())
    bars = [
        bar("ringleader: no update lost", lost, is_met=lost == 0),
        bar("ringleader: no run ended", ended, is_met=ended == 0),
    ]
    for kind, other in theirs.items():
        our_s = ours.get(kind, ours["machine"])["next_update_s"].get("median")
        their_s = other["next_update_s"].get("median")
        text = f"{kind}: next update sooner than torchrun"
        values = {"ringleader_s": our_s, "torchrun_s": their_s or "run ended"}
        is_met = our_s is not None and (their_s is None or our_s < their_s)
        bars.append(bar(text, values, is_met=is_met))
    return bars


if __name__ == "__main__":
    main()
