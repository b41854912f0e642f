"""Kills ranks while they save checkpoints, and loads what is left.

Three processes play three machines, each with a folder of its own. They save step
after step; at a random moment one of them, or all, get SIGKILL, rank 0 (which makes the
manifest) included. Then three new processes load; every other time, one machine's
folder is deleted before. The newest step that all ranks knew as saved, or a later one,
must load with the right values.

    python benchmarks/checkpoint_kills.py --kills 300
"""

from __future__ import annotations

import argparse
import json
import multiprocessing as mp
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from datetime import timedelta
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path

import torch
import torch._dynamo  # once, not in every process: optimizers import it late
import torch.distributed as dist
from torch import nn

from ringleader import checkpoint

RANKS = 3
WIDTH = 181  # divides by nothing


def filled(value: float) -> tuple[nn.Module, torch.optim.Optimizer]:
    """Return a model and an optimizer whose numbers all follow from one."""
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 3))
    optimizer = torch.optim.Adam(model.parameters())
    for parameter in model.parameters():
        parameter.data.fill_(value)
        parameter.grad = torch.full_like(parameter, value)
        state = optimizer.state[parameter]
        state["step"] = torch.tensor(value)
        state["exp_avg"] = torch.full_like(parameter, value)
        state["exp_avg_sq"] = torch.full_like(parameter, value)
    return model, optimizer


def saver(rank: int, root: Path, first: int, pipe: Connection) -> None:
    """Save step after step until killed; report each step that was saved."""
    join(rank, root / f"meeting{first}")
    for step in range(first, first + 1000):
        model, optimizer = filled(float(step))
        checkpoint.save(root / f"machine{rank}", step, model, optimizer, keep=2)
        pipe.send(step)


def loader(rank: int, root: Path, trial: int, pipe: Connection) -> None:
    """Load the newest checkpoint and compare every number with its step."""
    join(rank, root / f"loading{trial}")
    model, optimizer = filled(-1.0)
    loaded = checkpoint.load(root / f"machine{rank}", model, optimizer)
    if loaded is None:
        pipe.send((-1, True))
        return
    numbers = [*model.parameters()]
    numbers += [v for s in optimizer.state.values() for v in s.values()]
    pipe.send((loaded.step, all(bool((n == loaded.step).all()) for n in numbers)))


def join(rank: int, meeting: Path) -> None:
    torch.set_num_threads(1)
    dist.init_process_group(
        "ringleader",
        init_method=f"file://{meeting}",
        rank=rank,
        world_size=RANKS,
        timeout=timedelta(seconds=20),
    )


def start(
    target: object, root: Path, number: int
) -> list[tuple[BaseProcess, Connection]]:
    context = mp.get_context("fork")
    started: list[tuple[BaseProcess, Connection]] = []
    for rank in range(RANKS):
        ours, theirs = context.Pipe()
        process = context.Process(
            target=quiet, args=(target, rank, root, number, theirs), daemon=True
        )
        process.start()
        theirs.close()
        started.append((process, ours))
    return started


def quiet(target, *args: object) -> None:  # noqa: ANN001
    """Run a rank; the errors of survivors are expected and go to a file."""
    errors = Path(str(args[1])) / "errors"
    os.dup2(os.open(errors, os.O_WRONLY | os.O_CREAT | os.O_APPEND), 2)
    target(*args)
    os._exit(0)


def kill_while_saving(root: Path, first: int, chance: random.Random) -> tuple[int, str]:
    """Return the newest step that a rank knew as saved, and who was killed."""
    ranks = start(saver, root, first)
    saved = first - 1
    if ranks[0][1].poll(60):
        saved = ranks[0][1].recv()
    time.sleep(chance.random() * 0.15)
    victim = chance.choice([0, 1, 2, None])
    for rank, (process, _) in enumerate(ranks):
        if victim in (rank, None):
            os.kill(process.pid or 0, signal.SIGKILL)
    for process, pipe in ranks:
        process.join(30)
        if process.is_alive():
            raise SystemExit("a survivor hangs")
        try:
            while pipe.poll(0):
                saved = max(saved, pipe.recv())
        except EOFError:
            pass
    return saved, "all" if victim is None else f"rank {victim}"


def answer(pipe: Connection) -> tuple[int, bool] | None:
    """Return what a loader says; None if it failed."""
    try:
        return pipe.recv() if pipe.poll(60) else None
    except EOFError:
        return None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=300)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    chance = random.Random(arguments.seed)
    root = Path(tempfile.mkdtemp(prefix="kills"))
    outcomes: Counter[str] = Counter()
    newest = 0
    begun = time.monotonic()
    for trial in range(arguments.kills):
        saved, who = kill_while_saving(root, newest + 1, chance)
        if trial % 2:
            shutil.rmtree(root / f"machine{chance.randrange(RANKS)}")
        loaded = [answer(pipe) for _, pipe in start(loader, root, trial)]
        steps = {each and each[0] for each in loaded}
        right = all(each and each[1] for each in loaded)
        if len(steps) != 1 or not right or not (step := steps.pop()) or step < saved:
            print(
                f"trial {trial}, {who} killed: saved {saved}, loaded {loaded}; {root}"
            )
            sys.exit(1)
        outcomes[who] += 1
        outcomes["newer than acknowledged"] += step > saved
        newest = step
    result = {
        "kills": arguments.kills,
        "wrong": 0,
        "seconds": round(time.monotonic() - begun, 1),
        "outcomes": dict(outcomes),
        "torch": torch.__version__,
    }
    print(json.dumps(result))
    if arguments.out:
        arguments.out.write_text(json.dumps(result, indent=2) + "\n")
    shutil.rmtree(root)


if __name__ == "__main__":
    main()
