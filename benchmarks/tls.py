"""Measures the cost of TLS: the same all_reduce over plain and over encrypted links.

Two ranks hold two groups, one plain and one encrypted, and call them alternately, so
that a disturbance of the machine affects both. The virtual LAN needs root;
``--where loopback`` and ``--where shm`` do not.

    .venv/bin/python benchmarks/tls.py
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

MIB = 1 << 20
ENVIRONMENTS = ("lan", "loopback", "shm")
LIMIT = 1.05
"""Limit for the time with TLS relative to plain, on a LAN of 1 Gbit/s."""
LIMIT_FROM_MIB = 16
"""The limit applies from this size; smaller messages take some microseconds longer."""
PORTS = {"plain": 5101, "tls": 5201}


def main() -> None:
    """Measure in every environment in turn and print the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    parser.add_argument("--where", choices=ENVIRONMENTS, action="append")
    parser.add_argument(
        "--rate", default="1gbit", help="rate of the LAN, in tc's units"
    )
    parser.add_argument("--sizes", type=float, nargs="+", default=[16, 64], help="MiB")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--json", type=Path, help="write all rounds to this file")
    options = parser.parse_args()
    if options.worker:
        work(json.loads(options.worker))
        return
    found = {
        where: measure(where, options.rate, options.sizes, options.rounds)
        for where in options.where or ENVIRONMENTS
    }
    show(found)
    if options.json:
        from machine import describe

        text = json.dumps({"machine": describe(), "rate": options.rate, **found})
        options.json.write_text(text + "\n")


def measure(where: str, rate: str, sizes: list[float], rounds: int) -> dict[str, Any]:
    """Return the rounds of rank 0 and the load of the machine."""
    from ringleader.simulation.lan import lan

    with ExitStack() as stack:
        home = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        files = make_credentials(home)
        if where == "lan":
            net = stack.enter_context(lan(hosts=2, rate=rate))
            starts = [host.popen for host in net.hosts]
            hosts = [host.address for host in net.hosts]
        else:
            starts, hosts = [subprocess.Popen] * 2, ["127.0.0.1"] * 2
        job = {"hosts": hosts, "where": where, "sizes": sizes, "rounds": rounds}
        workers = [
            start(
                [
                    sys.executable,
                    __file__,
                    "--worker",
                    json.dumps({**job, "rank": rank, "credentials": files[rank]}),
                ],
                stdout=subprocess.PIPE,
                text=True,
            )
            for rank, start in enumerate(starts)
        ]
        outputs = [worker.communicate(timeout=600)[0] for worker in workers]
        if any(worker.returncode for worker in workers):
            sys.exit(f"{where}: a rank failed, see above")
    return {"load": os.getloadavg()[0], **json.loads(outputs[0])}


def make_credentials(home: Path) -> list[str]:
    """Create the credential files of two nodes of one cluster; return their paths."""
    from ringleader.identity.cluster_secret import ClusterSecret, Secret
    from ringleader.identity.credentials import Credentials
    from ringleader.identity.node_key import NodeKey

    cluster = ClusterSecret(root=Secret(os.urandom(32)))
    paths = [home / f"rank{rank}" for rank in range(2)]
    for path in paths:
        Credentials.issue(cluster, NodeKey.ephemeral()).to_file(path)
    return [str(path) for path in paths]


def work(job: dict[str, Any]) -> None:
    """Run one rank: both groups, all sizes."""
    import torch

    import ringleader

    torch.set_num_threads(1)
    transport = "auto" if job["where"] == "shm" else "tcp"
    results: dict[str, Any] = {"links": {}, "sizes": {}}
    with ExitStack() as stack:
        groups = {}
        for kind, port in PORTS.items():
            os.environ["RINGLEADER_CREDENTIALS"] = (
                job["credentials"] if kind == "tls" else ""
            )
            os.environ["RINGLEADER_PLAINTEXT"] = "0" if kind == "tls" else "1"
            peers = [f"{host}:{port + i}" for i, host in enumerate(job["hosts"])]
            group = ringleader.group(peers, job["rank"], transport=transport)
            groups[kind] = stack.enter_context(group)
            results["links"][kind] = next(iter(group.links().values()))
        for size in job["sizes"]:
            tensor = torch.zeros(int(size * MIB) // 4)
            rows: dict[str, Any] = {kind: {"s": [], "cpu_s": []} for kind in groups}
            for turn in range(job["rounds"] + 1):
                for kind, group in groups.items():
                    tensor.fill_(group.rank + 1)
                    group.barrier()
                    cpu_s, began_s = time.process_time(), time.perf_counter()
                    group.all_reduce(tensor)
                    took_s = time.perf_counter() - began_s
                    used_s = time.process_time() - cpu_s
                    assert bool((tensor == 3).all())
                    if turn:  # the first round warms up
                        rows[kind]["s"].append(took_s)
                        rows[kind]["cpu_s"].append(used_s)
            results["sizes"][f"{size:g}"] = rows
    if job["rank"] == 0:
        print(json.dumps(results))


def show(found: dict[str, Any]) -> None:
    """Print a table of medians; the ratio is the median over pairs of rounds."""
    print(
        f"{'where':9} {'MiB':>4} {'plain ms':>9} {'tls ms':>9} {'MB/s':>6} "
        f"{'cost':>7} {'cpu plain':>9} {'cpu tls':>8}  links"
    )
    for where, result in found.items():
        for size, rows in result["sizes"].items():
            plain, tls = rows["plain"], rows["tls"]
            ratio = statistics.median(
                b / a for a, b in zip(plain["s"], tls["s"], strict=True)
            )
            took = {k: statistics.median(rows[k]["s"]) for k in rows}
            cpu = {k: statistics.median(rows[k]["cpu_s"]) for k in rows}
            speed = float(size) * MIB / took["tls"] / 1e6
            verdict = ""
            if where == "lan" and float(size) >= LIMIT_FROM_MIB:
                verdict = "  ok" if ratio <= LIMIT else f"  ABOVE {LIMIT - 1:.0%}"
            times = f"{took['plain'] * 1e3:9.2f} {took['tls'] * 1e3:9.2f}"
            cores = f"{cpu['plain'] * 1e3:6.1f} ms {cpu['tls'] * 1e3:5.1f} ms"
            kinds = f"{result['links']['plain']}/{result['links']['tls']}"
            cost = f"{speed:6.0f} {ratio - 1:+7.1%}"
            print(f"{where:9} {size:>4} {times} {cost} {cores}  {kinds}{verdict}")


if __name__ == "__main__":
    main()
