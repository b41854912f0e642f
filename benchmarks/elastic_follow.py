"""A run with 20 kills beside the uninterrupted run of a single process, the same seed.

    .venv/bin/python benchmarks/elastic_follow.py           # on the loopback
    .venv/bin/python benchmarks/elastic_follow.py --lan     # in namespaces (root)

Three members train a model; 20 times one of them is killed, at a named point or at a
random moment, and comes back as a newcomer. After every step of every member: the
parameters are equal, bit for bit, to those of the other members; in float64 they are
within 1e-9 of a single process in numpy; in float32 the loss over all samples is within
1e-3 of a single process in plain torch. At the end the ledger of every member must hold
each sample of the whole run exactly once.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
from contextlib import nullcontext
from pathlib import Path

from machine import describe
from results_file import bar, dated, save

from ringleader.simulation.lan import lan

sys.path.append(str(Path(__file__).parents[1]))  # for tests.kit
from tests.kit.elastic_killer import Killer, matrix
from tests.kit.elastic_tally import Tally
from tests.kit.elastic_world import World
from tests.kit.endless_task import LossReference, Reference

SIZE = 3
CURVE = 50
"""Points of the loss curve that the results show."""


def follow(world: World, kills: int, steps: int, seed: int) -> dict[str, object]:
    """Train some steps with some kills; raises AssertionError if anything differs."""
    tally, began_s = Tally(), time.monotonic()
    killer = Killer(world, tally, seed)
    killer.begin()
    chosen = random.Random(seed).sample(matrix(SIZE), len(matrix(SIZE)))
    while tally.num_kills < kills:
        version = steps * tally.num_kills // kills
        world.wait_for_version(version)
        case = chosen.pop()
        if tally.num_kills == kills - 1:  # room for one more only
            case = ("any", "leader")
        killer.kill_once(case)
    world.wait_for_version(steps)
    samples = {world.check_ledger(member) for member in world.alive.values()}
    return {
        "kills": tally.num_kills,
        "by_point_and_role": {n: c.kills for n, c in sorted(tally.cells.items())},
        "steps": min(member.version for member in world.alive.values()),
        "steps_compared": world.checks,
        "largest_difference": world.largest_difference,
        "samples_in_ledger": max(samples),
        "seconds": round(time.monotonic() - began_s, 1),
    }


def run(reference: Reference | LossReference, options: argparse.Namespace) -> dict:
    """Make the run in the precision of the reference; return what was found."""
    made = lan(hosts=SIZE, rate="1gbit") if options.lan else nullcontext()
    with made as net, tempfile.TemporaryDirectory() as folder:
        world = World(Path(folder), SIZE, net, reference=reference)
        with world:
            try:
                found = follow(world, options.kills, options.steps, options.seed)
            except AssertionError as exc:
                found = {"failure": f"{type(exc).__name__}: {exc}"}
                found["largest_difference"] = world.largest_difference
    if isinstance(reference, LossReference):
        found["loss_curves"] = curves(reference)
    return found


def curves(reference: LossReference) -> list[dict[str, float]]:
    """Return points of both loss curves."""
    versions = sorted(reference.other_losses)
    return [
        {
            "step": version,
            "one process": round(reference.losses[version], 6),
            "with kills": round(reference.other_losses[version], 6),
        }
        for version in versions[:: max(1, len(versions) // CURVE)]
    ]


def main() -> None:
    """Make both runs, and save the results with the verdicts."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--lan", action="store_true")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, default=dated("elastic-follow"))
    options = parser.parse_args()
    exact = run(Reference(), options)
    single = run(LossReference(), options)
    is_whole = "failure" not in exact and "failure" not in single
    kills = [exact.get("kills", 0), single.get("kills", 0)]
    ledgers = [exact.get("samples_in_ledger"), single.get("samples_in_ledger")]
    bars = [
        bar("20 kills", kills, is_met=min(kills) >= 20),
        bar(
            "float64 parameters within 1e-9 of one process, after every step",
            exact["largest_difference"],
            is_met="failure" not in exact and exact["largest_difference"] <= 1e-9,
        ),
        bar(
            "float32 loss within 1e-3 of one process, after every step",
            single["largest_difference"],
            is_met="failure" not in single and single["largest_difference"] <= 1e-3,
        ),
        bar(
            "members bit-identical after every step",
            [exact.get("steps_compared"), single.get("steps_compared")],
            is_met=is_whole,
        ),
        bar("every sample exactly once in the ledger", ledgers, is_met=is_whole),
    ]
    results = {**describe(), "members": SIZE, "lan": options.lan, "bars": bars}
    save(options.out, {**results, "float64": exact, "float32": single})
    sys.exit(any(each["verdict"] != "met" for each in bars))


if __name__ == "__main__":
    main()
