"""Learning curves of training with little communication, at equal samples.

Workers are simulated in one process. What is exchanged between them goes through the
production code: the outer step, means by tokens, shares by speed, weights of late
differences, and the codecs with error feedback.

    python benchmarks/low_communication.py --problem characters --device cuda --jobs 8
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections import deque
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

SEEDS = (0, 1, 2)
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


CASES = (
    *(Case(f"synchronous, rate x{r:g}", steps=0, rate=r) for r in (0.5, 1, 2, 4)),
    Case("one worker, plain AdamW", workers=1, steps=0),
    Case("one worker, H 10", workers=1, steps=10),
    Case("H 10", steps=10),
    Case("H 50"),
    Case("H 50, rate x2", rate=2),
    Case("H 50, average", outer="average"),
    Case("H 50, int8", codec="int8"),
    Case("H 30, SparseLoCo", steps=30, outer="average", codec="sparseloco"),
    Case(
        "H 30, SparseLoCo, mean of senders",
        steps=30,
        outer="average",
        codec="sparseloco",
        rule="senders",
    ),
    Case("H 50, int8, 4 -> 2 -> 4 workers", codec="int8", leaves=True),
    Case("H 50, speeds 4:2:1:1", speeds=(4, 2, 1, 1)),
    Case(
        "H 50, speeds 4:2:1:1, no token weights",
        speeds=(4, 2, 1, 1),
        has_token_weights=False,
    ),
    *(
        Case(f"H 50, {t} late, {label}", late=t, **more)  # type: ignore[arg-type]
        for t in (1, 4, 8)
        for label, more in (
            ("Nesterov", {"has_age_weights": False}),
            ("Nesterov, age weights", {}),
            ("Adam 0.001, age weights", {"outer": "adam"}),
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


class Training:
    """All seeds of one case at once: replicas of seed s are s * workers onwards."""

    def __init__(self, case: Case, problem: str, device: str, total: int) -> None:
        self.case, self.total = case, total
        found = PROBLEMS[problem]()
        if not case.steps:  # one replica makes the steps of all workers together
            found = replace(found, batch=found.batch * case.workers)
            case = self.case = replace(case, workers=1)
        self.problem = found
        seeds = [seed for seed in SEEDS for _ in range(case.workers)]
        self.replicas = Replicas(found, seeds, device)
        self._order = [np.random.RandomState(seed) for seed in SEEDS]

    def run(self) -> list[float]:
        """Train for ``total`` steps per worker; return the final value of each seed."""
        case, replicas = self.case, self.replicas
        outers = [
            Outer(case, replicas.values(s * case.workers)) for s in range(len(SEEDS))
        ]
        steps = case.steps or 1
        rounds = self.total // steps
        for turn in range(rounds):
            left = 1 - turn / rounds
            replicas.set_rate(case.rate * min(1.0, left / 0.3, (turn + 1) * steps / 50))
            shares = self._shares(turn, rounds, steps)
            self._local_steps(shares)
            if case.steps:
                for seed, outer in enumerate(outers):
                    self._exchange(seed, outer, shares)
        return replicas.test()[:: case.workers]

    def _shares(self, turn: int, rounds: int, steps: int) -> list[int]:
        """Return the local steps of each worker in this round; 0: it is away."""
        workers = self.case.workers
        if self.case.leaves and rounds // 3 <= turn < 2 * rounds // 3:
            return [2 * steps, 2 * steps, 0, 0]
        return split_by_speed(steps * workers, self.case.speeds[:workers])

    def _local_steps(self, shares: list[int]) -> None:
        replicas, workers = self.replicas, len(shares)
        done = {}
        for step in range(max(shares)):
            for i in range(replicas.count):
                if shares[i % workers] == step:
                    done[i] = replicas.snapshot(i)
            replicas.step([self._samples(i // workers) for i in range(replicas.count)])
        for i, snapshot in done.items():
            replicas.restore(i, snapshot)

    def _samples(self, seed: int) -> np.ndarray:
        count = len(self.problem.train[0])
        return self._order[seed].randint(0, count, self.problem.batch)

    def _exchange(self, seed: int, outer: Outer, shares: list[int]) -> None:
        first = seed * self.case.workers
        differences, tokens = {}, {}
        for worker, steps in enumerate(shares):
            if steps:
                now = self.replicas.values(first + worker)
                differences[worker] = outer.parameters - now
                tokens[worker] = steps * self.problem.batch
        outer.exchange(differences, tokens)
        for worker in range(len(shares)):
            self.replicas.load(first + worker, outer.parameters)


def run_case(args: argparse.Namespace) -> None:
    """Run one case and print its result as JSON."""
    torch.set_num_threads(1)
    case = next(c for c in CASES if c.name == args.case)
    began_s = time.monotonic()
    training = Training(case, args.problem, args.device, args.steps)
    values = training.run()
    size = len(training.replicas.values(0))
    row = {"problem": args.problem, "case": case.name, "values": values}
    row |= {"mean": statistics.mean(values), "parameters": size}
    row |= {"rounds": args.steps // (case.steps or 1), "settings": asdict(case)}
    row |= {"seconds": round(time.monotonic() - began_s, 1)}
    print(json.dumps(row), flush=True)


def run_all(args: argparse.Namespace) -> None:
    """Run all cases, ``--jobs`` at a time, and write what they print to ``--out``."""
    names = [c.name for c in CASES if args.match in c.name]
    running: list[subprocess.Popen[str]] = []
    rows = []
    command = [sys.executable, __file__, "--problem", args.problem]
    command += ["--device", args.device, "--steps", str(args.steps), "--case"]
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    while names or running:
        while names and len(running) < args.jobs:
            call = [*command, names.pop(0)]
            running.append(
                subprocess.Popen(call, stdout=subprocess.PIPE, text=True, env=env)
            )
        for process in [p for p in running if p.poll() is not None]:
            running.remove(process)
            said = process.communicate()[0]
            if process.returncode == 0:
                rows.append(json.loads(said))
                print(f"{rows[-1]['mean']:8.4f}  {rows[-1]['case']}", flush=True)
            _write(args, rows)
        time.sleep(0.2)


def _write(args: argparse.Namespace, rows: list[dict[str, object]]) -> None:
    about = {
        "date": time.strftime("%Y-%m-%d"),
        "device": torch.cuda.get_device_name() if args.device == "cuda" else "cpu",
        "torch": torch.__version__,
        "steps_per_worker": args.steps,
        "rows": rows,
    }
    args.out.write_text(json.dumps(about, indent=1) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--problem", default="digits", choices=sorted(PROBLEMS))
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--steps", type=int, default=3000, help="of each worker")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--match", default="", help="only cases with this in the name")
    parser.add_argument("--case", default="")
    parser.add_argument("--out", type=Path, default=Path("low-communication.json"))
    args = parser.parse_args()
    run_case(args) if args.case else run_all(args)


if __name__ == "__main__":
    main()
