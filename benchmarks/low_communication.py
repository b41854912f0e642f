"""Learning curves of training with little communication, at equal samples.

Workers are simulated, each with a model and AdamW of its own. What is exchanged between
them goes through the production code: the outer step, means by tokens, shares by speed,
weights of late differences, and the codecs with error feedback. Synchronous training
(DDP) is one model that makes each step on the batches of all workers together.

Every case runs with one seed first. Then the best of each family runs with the other
seeds, and the means are compared: the verdict says whether DiLoCo with int8 is within
1 % of synchronous training, both with the best of their learning rates. The same
command goes on where it was interrupted: what the file of results has is not repeated.

    python benchmarks/low_communication.py --problem few-characters --match 'DDP|int8'
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import re
import statistics
import sys
import time
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch

sys.path.append(str(Path(__file__).parent))

from low_communication_cases import CASES, MAX_WORKERS, Case
from low_communication_problems import PROBLEMS, Problem
from low_communication_training import ROUND, train

RESULTS = Path(__file__).parent / "results"
WITHIN = 0.01
"""Bar of issue 18: how far the test loss may be above that of DDP."""


def make_problem(args: argparse.Namespace) -> Problem:
    """Return the problem, with the user's batch if there is one."""
    problem = PROBLEMS[args.problem]()
    return replace(problem, batch=args.batch or problem.batch).on(args.device)


def run_job(case: Case, args: argparse.Namespace, seed: int) -> dict[str, Any]:
    """Train one case with one seed."""
    began_s = time.monotonic()
    value = train(case, make_problem(args), seed, args.rounds)
    seconds = round(time.monotonic() - began_s)
    row = {"case": case.name, "family": case.family, "seed": seed, "value": value}
    print(f"{value:8.4f}  seed {seed}  {seconds:5d} s  {case.name}", flush=True)
    return {**row, "seconds": seconds, "settings": asdict(case)}


def best_of(rows: list[dict[str, Any]], *, is_loss: bool) -> dict[str, Any]:
    """Return the best row of each family."""
    found: dict[str, Any] = {}
    for row in rows:
        other = found.get(row["family"])
        if other is None or (row["value"] < other["value"]) == is_loss:
            found[row["family"]] = row
    return found


def verdicts(best: dict[str, Any]) -> dict[str, Any]:
    """Compare each family with DDP at the best of its learning rates."""
    if "DDP" not in best:
        return {}
    means = {name: row["mean"] for name, row in best.items()}
    ddp = means.pop("DDP")
    behind = {name: mean / ddp - 1 for name, mean in means.items()}
    bar = {
        name: {"behind": share, "is_within_1_percent": share <= WITHIN}
        for name, share in behind.items()
        if "int8" in name
    }
    return {"behind_ddp": behind, "bar_loss_within_1_percent": bar}


class Benchmark:
    """Runs the cases, and writes the results after each of them."""

    def __init__(self, args: argparse.Namespace) -> None:
        self._args = args
        self._problem = make_problem(args)
        self._date = time.strftime("%Y-%m-%d")
        name = f"low-communication-{args.problem}-{self._date}.json"
        self._out = args.out or RESULTS / name
        self._rows = self._earlier_rows()

    def run(self) -> None:
        """Run every case, then the best ones with more seeds."""
        chosen = [c for c in CASES if self._args.problem in c.problems]
        cases = [c for c in chosen if re.search(self._args.match, c.name)]
        context = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(self._args.jobs, context) as pool:
            self._collect(pool, [(case, 0) for case in cases])
            seeds = range(1, self._args.seeds)
            best = [Case(**row["settings"]) for row in self._best().values()]
            self._collect(pool, [(case, seed) for case in best for seed in seeds])
        found = self._write(is_complete=True)
        for family, row in found["best"].items():
            print(f"{row['mean']:8.4f}  {family}: {row['case']}")
        print(json.dumps(found["verdict"], indent=1), f"\n{self._out}")

    def _earlier_rows(self) -> list[dict[str, Any]]:
        """Return what an interrupted run of the same problem has found."""
        if not self._out.exists():
            return []
        found = json.loads(self._out.read_text())
        now = self._settings()
        if {name: found.get(name) for name in now} != now:
            sys.exit(f"{self._out} has results of other settings: use --out FILE")
        return list(found["rows"])

    def _settings(self) -> dict[str, Any]:
        """Return what all rows of one file have in common."""
        return {
            "problem": self._args.problem,
            "rounds": self._args.rounds,
            "samples_per_global_step": self._problem.batch,
            "torch": torch.__version__,
            "device": self._args.device,
        }

    def _has(self, case: Case, seed: int) -> bool:
        settings = json.dumps(asdict(case))
        same = [r for r in self._rows if json.dumps(r["settings"]) == settings]
        return any(row["seed"] == seed for row in same)

    def _collect(self, pool: ProcessPoolExecutor, jobs: list[tuple[Case, int]]) -> None:
        futures = [
            pool.submit(run_job, case, self._args, seed)
            for case, seed in jobs
            if not self._has(case, seed)
        ]
        for future in as_completed(futures):
            self._rows.append(future.result())
            self._write(is_complete=False)

    def _best(self) -> dict[str, Any]:
        rows = [row for row in self._rows if not row["seed"]]
        return best_of(rows, is_loss=not self._problem.reports_accuracy)

    def _write(self, *, is_complete: bool) -> dict[str, Any]:
        problem = self._problem
        means = {}
        for family, best in self._best().items():
            same = [row for row in self._rows if row["case"] == best["case"]]
            mean = statistics.mean(row["value"] for row in same)
            means[family] = {"case": best["case"], "mean": mean, "seeds": len(same)}
        model = problem.seeded_model(0)
        found = {
            "date": self._date,
            "is_complete": is_complete,
            **self._settings(),
            "reports": "percent right" if problem.reports_accuracy else "test loss",
            "parameters": sum(p.numel() for p in model.parameters()),
            "steps_of_each_worker": self._args.rounds * ROUND,
            "best": means,
            "verdict": {} if problem.reports_accuracy else verdicts(means),
            "rows": self._rows,
        }
        self._out.write_text(json.dumps(found, indent=1) + "\n")
        return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--problem", default="digits", choices=sorted(PROBLEMS))
    parser.add_argument("--rounds", type=int, default=200, help=f"of {ROUND} steps")
    parser.add_argument("--batch", type=int, default=0, help="samples of all workers")
    parser.add_argument("--match", default="", help="only cases this matches (regex)")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--jobs", type=int, default=2, help="processes of one thread")
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--out", type=Path, default=None)
    args = parser.parse_args()
    if args.batch < 0 or args.batch % MAX_WORKERS:
        parser.error(f"--batch {args.batch}: use a multiple of {MAX_WORKERS} workers")
    Benchmark(args).run()


if __name__ == "__main__":
    main()
