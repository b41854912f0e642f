"""Measures the time from the last command to the first training step on three hosts.

    python benchmarks/start.py --runs 5 --out benchmarks/results/start-DATE.json

``ringleader run`` and ``torchrun --rdzv-backend=c10d`` with Gloo take turns on the same
three hosts of a virtual LAN, with a name server that answers that it knows no name, and
with one that never answers. The trainer forms the group, wraps DDP and makes one step;
the time ends when the last rank has made it. Also counts the CPU seconds of all
processes, until that step and until the end: on a busy machine, compare these. Needs
root and iproute2.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from ringleader.simulation.lan import VirtualLan, lan
from ringleader.testing.node_process import make_home

TRAINER = Path(__file__).with_name("start_trainer.py")
HOSTS = 3
LIMIT_S = 180.0
SILENT = "10.77.255.53"
"""Address of the name server that never answers."""

Row = dict[str, float]


def silence_dns(net: VirtualLan) -> None:
    """Let name look-ups time out: the packets to the name server are lost."""
    for host in net.hosts:
        neighbour = ["ip", "neigh", "replace", SILENT, "lladdr", "02:77:ff:ff:ff:ff"]
        argv = host.command([*neighbour, "dev", "eth0", "nud", "permanent"])
        subprocess.run(argv, check=True)
        host.set_name_server(SILENT)


def ringleader(_net: VirtualLan, _index: int) -> list[str]:
    """Return the command of one host."""
    run = [sys.executable, "-m", "ringleader.cli.main", "run", "--nodes", str(HOSTS)]
    return [*run, str(TRAINER), "ringleader"]


def torchrun(net: VirtualLan, index: int) -> list[str]:
    """Return the command of one host, with the addresses that it cannot know."""
    options = {
        "--nnodes": str(HOSTS),
        "--nproc-per-node": "1",
        "--rdzv-backend": "c10d",
        "--rdzv-endpoint": f"{net.hosts[0].address}:29500",
        "--rdzv-conf": f"is_host={int(index == 0)}",
        "--rdzv-id": "start",
        "--local-addr": net.hosts[index].address,
    }
    words = [f"{name}={value}" for name, value in options.items()]
    return [sys.executable, "-m", "torch.distributed.run", *words, str(TRAINER), "gloo"]


LAUNCHERS = {"ringleader run": ringleader, "torchrun": torchrun}


def cpu_s() -> float:
    """CPU seconds of this process's ended children and of their ended children."""
    used = os.times()
    return used.children_user + used.children_system


def measure(net: VirtualLan, homes: list[Path], launcher: str) -> Row:
    """Start one job and wait for its end."""
    before_s = cpu_s()
    processes = []
    for i, host in enumerate(net.hosts):
        env = {
            **os.environ,
            "RINGLEADER_HOME": str(homes[i]),
            "RINGLEADER_NAME": f"n{i}",
            "OMP_NUM_THREADS": "1",
            "GLOO_SOCKET_IFNAME": "eth0",
        }
        argv = LAUNCHERS[launcher](net, i)
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        processes.append(host.popen(argv, text=True, env=env, **pipes))
    started_s = time.monotonic()
    lines = []
    for process in processes:
        out, err = process.communicate(timeout=LIMIT_S)
        if process.returncode:
            raise SystemExit(f"{launcher} failed:\n{err[-2000:]}")
        lines += [json.loads(e) for e in out.splitlines() if e.startswith("{")]
    ended_s = time.monotonic()
    assert sorted(e["rank"] for e in lines) == list(range(HOSTS)), lines
    moments = ("began", "formed", "step")
    row = {name: max(e[name] for e in lines) - started_s for name in moments}
    return {
        **row,
        "end": ended_s - started_s,
        "cpu_to_step": sum(e["cpu"] for e in lines),
        "cpu": cpu_s() - before_s,
    }


@contextmanager
def cluster() -> Iterator[tuple[VirtualLan, list[Path]]]:
    """Yield the hosts, and the homes of the machines of one cluster."""
    root = os.urandom(32)
    with TemporaryDirectory() as folder, lan(hosts=HOSTS, rate="1gbit") as net:
        yield net, [make_home(Path(folder) / str(i), root) for i in range(HOSTS)]


def compare(runs: int, *, dead_dns: bool) -> dict[str, Row]:
    """Return the medians of both launchers, which take turns."""
    rows: dict[str, list[Row]] = {name: [] for name in LAUNCHERS}
    with cluster() as (net, homes):
        if dead_dns:
            silence_dns(net)
        for run in range(runs):
            for name in LAUNCHERS if run % 2 else reversed(LAUNCHERS):
                row = measure(net, homes, name)
                rows[name].append(row)
                parts = ", ".join(f"{key} {value:.2f}" for key, value in row.items())
                print(f"{'dead DNS' if dead_dns else 'DNS'}: {name}: {parts}")
    return {name: summarize(each) for name, each in rows.items()}


def summarize(rows: list[Row]) -> Row:
    """Return the median of every column, and the slowest first step."""
    middle = {key: round(statistics.median(r[key] for r in rows), 2) for key in rows[0]}
    return {**middle, "worst_step": round(max(r["step"] for r in rows), 2)}


def main() -> None:
    """Measure both cases."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--only", choices=["dns", "dead-dns"])
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    found: dict[str, object] = {
        "when": time.strftime("%F %T"),
        "load": os.getloadavg()[0],
        "cores": os.cpu_count(),
        "torch": torch.__version__,
        "runs": options.runs,
    }
    if options.only != "dead-dns":
        found["dns"] = compare(options.runs, dead_dns=False)
    if options.only != "dns":
        found["dead_dns"] = compare(options.runs, dead_dns=True)
    found["load_after"] = os.getloadavg()[0]
    text = json.dumps(found, indent=1)
    print(text)
    if options.out is not None:
        options.out.write_text(text + "\n")


if __name__ == "__main__":
    main()
