"""One node of a test: joins, sums in a loop, joins again when a machine is lost.

Tells every event as a line of JSON on standard output, with the machine's clock.
"""

from __future__ import annotations

import json
import os
import sys
import time

import torch

import ringleader


def say(event: str, **facts: object) -> None:
    """One event, at the time of the clock that all hosts of the LAN share."""
    line = {"event": event, "at_s": time.monotonic(), "pid": os.getpid(), **facts}
    sys.stdout.write(json.dumps(line) + "\n")
    sys.stdout.flush()


def somebody_waits(group: ringleader.Group) -> bool:
    """Whether any rank has heard that the group should be formed anew."""
    waits = torch.tensor([int(ringleader.should_rejoin())])
    group.all_reduce(waits, "max")
    return bool(waits)


def train(group: ringleader.Group, pause_s: float, work: int) -> None:
    """Sum until a peer is lost or another one waits; every sum is checked."""
    step = 0
    matrix = torch.rand(work, work)
    while True:
        value = torch.full((1000 + work**2,), float(group.rank + 1)).double()
        started_s = time.perf_counter()
        matrix = (matrix @ matrix).clamp(0, 1)
        group.all_reduce(value)
        took_s = time.perf_counter() - started_s
        wanted = group.size * (group.size + 1) / 2
        if not bool((value == wanted).all()):
            say("wrong", got=float(value[0]), wanted=wanted)
        if step % 10 == 0 and somebody_waits(group):
            return
        if step % 10 == 0:
            say("step", step=step, size=group.size, rank=group.rank, took_s=took_s)
        step += 1
        time.sleep(pause_s)


def main() -> None:
    """``cluster_trainer.py MIN_NODES MAX_NODES WAIT_S [WORK]``."""
    need, most, wait_s = int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
    work = int(sys.argv[4]) if len(sys.argv) > 4 else 0
    say("started")
    while True:
        try:
            with ringleader.join(
                most if need == most else None,
                min_nodes=need,
                wait_s=wait_s,
                timeout_s=60,
                config=ringleader.CollectiveConfig(timeout_s=5.0),
            ) as group:
                say("formed", size=group.size, rank=group.rank)
                train(group, 0.02, work)
        except ringleader.RingleaderError as exc:
            say("lost", error=str(exc), kind=type(exc).__name__)


if __name__ == "__main__":
    main()
