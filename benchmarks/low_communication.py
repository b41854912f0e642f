"""Learning curves of training with little communication, at equal samples.

Workers are simulated in one process. What is exchanged between them goes through the
production code: the outer step, means by tokens, shares by speed, weights of late
differences, and the codecs with error feedback.

    python benchmarks/low_communication.py --problem characters --device cuda
"""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import sys
import time
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
import torch

sys.path.append(str(Path(__file__).parent))

from low_communication_replicas import PROBLEMS, Replicas, Vector

from ringleader.codec.codec import Codec
from ringleader.codec.registry import make_codec
from ringleader.codec.sparse_chunks import SparseChunks
from ringleader.rounds.outer_step import NESTEROV, PLAIN
from ringleader.rounds.round_length import late_weight, split_by_speed
from ringleader.rounds.round_mean import RoundMean

SEEDS = [0, 1, 2]
DECAY = 0.95
"""Share of the residual that SparseLoCo keeps."""


@dataclass(frozen=True)
class Case:
    """One way to train."""

    name: str
    workers: int = 4
    steps: int = 50
    """Local steps between two exchanges; 0: synchronous training."""
    rate: float = 1.0
    """Factor of the inner learning rate."""
    outer: str = "nesterov"
    outer_rate: float = 0.001
    codec: str = ""
    rule: str = "all"
    speeds: tuple[float, ...] = (1, 1, 1, 1)
    has_token_weights: bool = True
    leaves: bool = False
    """Two of four workers are away in the middle third."""
    late: int = 0
    """Rounds by which three of four workers are late."""
    has_age_weights: bool = True


def _rates(case: Case, *rates: float) -> list[Case]:
    return [replace(case, name=f"{case.name}, rate x{r:g}", rate=r) for r in rates]


_SPARSE = Case("H 30, SparseLoCo", steps=30, outer="average", codec="sparseloco")
CASES = (
    *_rates(Case("synchronous", steps=0), 1, 2, 4, 8),
    *_rates(Case("one worker, plain AdamW", workers=1, steps=0), 0.5, 1, 2),
    *_rates(Case("one worker, H 10", workers=1, steps=10), 0.125, 0.25, 0.5),
    *_rates(Case("H 10", steps=10), 0.25, 0.5, 1),
    *_rates(Case("H 50"), 0.25, 0.5, 1, 2),
    *_rates(Case("H 50, int8", codec="int8"), 0.5, 1),
    *_rates(Case("H 50, average", outer="average"), 1, 2, 4),
    *_rates(_SPARSE, 1, 2),
    *_rates(replace(_SPARSE, name=f"{_SPARSE.name}, senders", rule="senders"), 1),
    Case("H 50, int8, 4 -> 2 -> 4 workers", codec="int8", leaves=True, rate=0.5),
    Case("H 50, speeds 4:2:1:1", speeds=(4, 2, 1, 1), rate=0.5),
    Case(
        "H 50, speeds 4:2:1:1, no token weights",
        speeds=(4, 2, 1, 1),
        has_token_weights=False,
        rate=0.5,
    ),
    *(
        Case(f"H 50, {t} late, {label}", late=t, rate=0.5, **more)  # type: ignore[arg-type]
        for t in (1, 4, 8)
        for label, more in (
            ("Nesterov", {"has_age_weights": False}),
            ("Nesterov, age weights", {}),
            ("Adam 0.003, age weights", {"outer": "adam", "outer_rate": 0.003}),
        )
    ),
)


class Outer:
    """The shared parameters of one seed, and what moves them."""

    def __init__(self, case: Case, start: Vector) -> None:
        self.case = case
        self.parameters = start.copy()
        self._velocity = np.zeros_like(start)
        self._tensor = torch.from_numpy(self.parameters)
        self._adam = torch.optim.Adam(
            [self._tensor], lr=case.outer_rate, betas=(0.9, 0.99)
        )
        self._residuals = [np.zeros_like(start) for _ in range(case.workers)]
        self._codec = _codec(case.codec)
        self._waiting: list[deque[Vector]] = [deque() for _ in range(case.workers)]

    def sent(self, worker: int, difference: Vector) -> Vector:
        """Return what the others decode of a difference; keep the rest."""
        if self._codec is None:
            return difference
        residual = self._residuals[worker]
        decay = DECAY if self.case.codec == "sparseloco" else 1.0
        wanted = difference + np.float32(decay) * residual
        data = np.empty(self._codec.num_bytes(len(wanted)), np.uint8)
        self._codec.encode(wanted, data, residual)
        return wanted - residual

    def exchange(self, differences: dict[int, Vector], tokens: dict[int, int]) -> None:
        """Make the outer step of one round."""
        case = self.case
        mean = RoundMean(len(self.parameters), case.rule)  # type: ignore[arg-type]
        for worker, difference in differences.items():
            sent, age = self.sent(worker, difference), 0
            if case.late and worker:
                self._waiting[worker].append(sent)
                if len(self._waiting[worker]) <= case.late:
                    continue
                sent, age = self._waiting[worker].popleft(), case.late
            weight = late_weight(age) if case.has_age_weights else 1.0
            mean.add(sent, weight * (tokens[worker] if case.has_token_weights else 1))
        self._apply(mean.combine())

    def _apply(self, gradient: Vector) -> None:
        if self.case.outer == "adam":
            self._tensor.grad = torch.from_numpy(gradient)
            self._adam.step()
        else:
            outer = NESTEROV if self.case.outer == "nesterov" else PLAIN
            outer.apply(self.parameters, self._velocity, gradient)


def _codec(name: str) -> Codec | None:
    if not name:
        return None
    return SparseChunks() if name == "sparseloco" else make_codec(name)


class CaseRun:
    """One case: which replicas are its workers, and the outer state of each seed."""

    def __init__(self, case: Case, first: int) -> None:
        self.case, self.first = case, first
        self.count = case.workers * len(SEEDS)
        self.outers: list[Outer] = []

    def replicas(self, seed: int) -> list[int]:
        """Return the replicas of a seed, one for each worker."""
        begin = self.first + seed * self.case.workers
        return list(range(begin, begin + self.case.workers))

    def shares(self, begun: float) -> list[int]:
        """Return the local steps of each worker; 0: it is away."""
        case = self.case
        if case.leaves and 1 / 3 <= begun < 2 / 3:
            return [2 * case.steps, 2 * case.steps, 0, 0]
        return split_by_speed(case.steps * case.workers, case.speeds[: case.workers])


class Training:
    """All seeds of all cases at once. A tick is one step of each replica."""

    def __init__(self, cases: list[Case], problem: str, device: str) -> None:
        self.problem = PROBLEMS[problem]()
        self.runs: list[CaseRun] = []
        for case in cases:
            first = sum(run.count for run in self.runs)
            self.runs.append(CaseRun(case, first))
        seeds = [s for r in self.runs for s in SEEDS for _ in range(r.case.workers)]
        self.replicas = Replicas(self.problem, seeds, device)
        for run in self.runs:
            rows = self.replicas.values([run.replicas(s)[0] for s in range(len(SEEDS))])
            run.outers = [Outer(run.case, row) for row in rows]
        self._chance = np.random.RandomState(0)
        self._pool = ThreadPoolExecutor(max(1, (os.cpu_count() or 2) - 2))
        self._plans = {run: run.shares(0.0) for run in self.runs if run.case.steps}
        self._begun = dict.fromkeys(self._plans, 0)
        self._done: dict[int, list[torch.Tensor]] = {}

    def run(self, total: int) -> None:
        """Train every worker for ``total`` steps."""
        groups = self._groups()
        factors = [r.case.rate for r in self.runs for _ in range(r.count)]
        base = self.problem.rate * torch.tensor(factors, device=self.replicas.device)
        size = self.replicas.count, self.problem.batch
        count = len(self.problem.train[0])
        for tick in range(total):
            scale = min(1.0, (1 - tick / total) / 0.3, (tick + 1) / 100)
            samples = self._chance.randint(0, count, size)
            self.replicas.step(samples, base * scale, groups)
            self._end_rounds(tick + 1, total)

    def _groups(self) -> torch.Tensor:
        """Number the replicas so that those of a synchronous case share a number."""
        numbers = list(range(self.replicas.count))
        for run in self.runs:
            for seed in range(len(SEEDS)):
                if not run.case.steps:
                    for replica in run.replicas(seed):
                        numbers[replica] = run.replicas(seed)[0]
        return torch.tensor(numbers, device=self.replicas.device)

    def _end_rounds(self, tick: int, total: int) -> None:
        jobs = []
        for run, shares in self._plans.items():
            at = tick - self._begun[run]
            for seed in range(len(SEEDS)):
                for worker, replica in enumerate(run.replicas(seed)):
                    if shares[worker] == at < max(shares):
                        self._done[replica] = self.replicas.snapshot(replica)
            if at == max(shares):
                jobs += [(run, seed) for seed in range(len(SEEDS))]
        list(self._pool.map(lambda job: self._exchange(*job), jobs))
        for run in {run for run, _ in jobs}:
            self._begun[run] = tick
            self._plans[run] = run.shares(tick / total)

    def _exchange(self, run: CaseRun, seed: int) -> None:
        mine, shares, outer = run.replicas(seed), self._plans[run], run.outers[seed]
        for replica in mine:
            if replica in self._done:
                self.replicas.restore(replica, self._done.pop(replica))
        rows = self.replicas.values(mine)
        there = [worker for worker, steps in enumerate(shares) if steps]
        differences = {w: outer.parameters - rows[w] for w in there}
        outer.exchange(differences, {w: shares[w] * self.problem.batch for w in there})
        self.replicas.load(mine, np.repeat(outer.parameters[None], len(mine), axis=0))


def run_cases(args: argparse.Namespace) -> None:
    """Run the cases together and write their results to ``--out``."""
    torch.set_num_threads(2)
    torch.set_float32_matmul_precision("high")
    cases = [c for c in CASES if re.search(args.match, c.name)]
    began_s = time.monotonic()
    training = Training(cases, args.problem, args.device)
    training.run(args.steps)
    rows = []
    for run in training.runs:
        firsts = [run.replicas(seed)[0] for seed in range(len(SEEDS))]
        values = [training.replicas.test(replica) for replica in firsts]
        row = {"case": run.case.name, "mean": statistics.mean(values), "values": values}
        rows.append({**row, "settings": asdict(run.case)})
        print(f"{row['mean']:8.4f}  {run.case.name}", flush=True)
    about = {
        "date": time.strftime("%Y-%m-%d"),
        "problem": args.problem,
        "parameters": len(training.replicas.values([0])[0]),
        "steps_per_worker": args.steps,
        "samples_per_step": training.problem.batch,
        "device": torch.cuda.get_device_name() if args.device == "cuda" else "cpu",
        "torch": torch.__version__,
        "seconds": round(time.monotonic() - began_s, 1),
        "rows": rows,
    }
    args.out.write_text(json.dumps(about, indent=1) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--problem", default="digits", choices=sorted(PROBLEMS))
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--steps", type=int, default=3000, help="of each worker")
    parser.add_argument("--match", default="", help="only cases this matches (regex)")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--out", type=Path, default=Path("low-communication.json"))
    args = parser.parse_args()
    SEEDS[:] = range(args.seeds)
    run_cases(args)


if __name__ == "__main__":
    main()
