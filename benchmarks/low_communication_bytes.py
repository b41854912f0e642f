"""Bytes at the interface: every step exchanged, or rounds of 50 local steps (root).

Two members train the same samples in a network namespace of their own; the counters of
its only interface are read after the first version and after the last one.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import TensorDataset

sys.path.append(str(Path(__file__).parents[1]))  # for tests.kit

from ringleader.groups.view_group import form_view_group
from ringleader.training import installed_view
from ringleader.training.data.data_state import DataSpec
from ringleader.training.elastic import start_run
from ringleader.training.options import Options
from tests.kit.elastic_task import Member, members

BATCH, MICRO, STEPS = 16, 8, 50


def sent_bytes() -> int:
    """Return the bytes that the loopback interface has carried."""
    lines = Path("/proc/net/dev").read_text().splitlines()
    row = next(line for line in lines if line.strip().startswith("lo:"))
    return int(row.split(":")[1].split()[0])


def train(me: Member, rounds: int, options: dict[str, Any]) -> tuple[int, int, int]:
    """Train as one member; return bytes, global steps between them, parameters."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 1024), nn.ReLU(), nn.Linear(1024, 256))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    steps = STEPS if "low_comm" in options else 1
    count = rounds * STEPS * BATCH
    data = TensorDataset(torch.randn(count, 64), torch.randint(0, 256, (count,)))
    spec = DataSpec(
        num_samples=count, global_batch=steps * BATCH, micro_batch=MICRO, seed=0
    )
    run = start_run(model, optimizer, data, spec, Options(**options), me.config())
    first = last = (0, 0)
    for x, y in run:
        run.backward(nn.functional.cross_entropy(model(x), y))
        if run.step():
            last = sent_bytes(), run.version * steps
            first = first if first[1] else last
    size = sum(p.numel() for p in model.parameters())
    return last[0] - first[0], last[1] - first[1], size


def measure(rounds: int, options: dict[str, Any]) -> dict[str, Any]:
    """Run two members in two processes; return what the first one counted."""
    with tempfile.TemporaryDirectory() as folder:
        pair = members(Path(folder), ["", ""])
        child = os.fork()
        if not child:
            train(pair[1], rounds, options)
            os._exit(0)
        num_bytes, steps, size = train(pair[0], rounds, options)
        os.waitpid(child, 0)
    return {
        "options": options,
        "steps": steps,
        "parameters": size,
        "bytes": num_bytes,
        "bytes_per_step": num_bytes / steps,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("--out", type=Path, default=None)
    parser.add_argument("--inside", action="store_true", help="in its namespace")
    args = parser.parse_args()
    if not args.inside:
        again = [sys.executable, __file__, *sys.argv[1:], "--inside"]
        sys.exit(subprocess.run(["unshare", "-n", *again], check=False).returncode)
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    # Members of one machine would share memory; these stand for two machines.
    links = partial(form_view_group, share_memory=False)
    installed_view.form_view_group = links  # type: ignore[attr-defined]
    rows = [
        measure(args.rounds, options)
        for options in ({}, {"low_comm": "diloco:50"}, {"low_comm": "sparseloco:50"})
    ]
    for row in rows:
        row["times_fewer"] = rows[0]["bytes_per_step"] / row["bytes_per_step"]
        print(f"{row['times_fewer']:8.1f}x fewer bytes  {row['options']}", flush=True)
    if args.out is not None:
        about = {"date": time.strftime("%Y-%m-%d"), "rounds": args.rounds, "rows": rows}
        args.out.write_text(json.dumps(about, indent=1) + "\n")


if __name__ == "__main__":
    main()
