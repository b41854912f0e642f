"""Measures the cost of TLS: the same all_reduce over plain and over encrypted links.

Two ranks hold two groups, one plain and one encrypted, and call them alternately, so
that a disturbance of the machine affects both. The virtual LAN needs root;
``--where loopback`` and ``--where shm`` do not. ``--helpers`` adds encrypted groups
with a fixed number of helper threads (RINGLEADER_HELPER_THREADS) to the same rounds.

    .venv/bin/python benchmarks/tls.py
    .venv/bin/python benchmarks/tls.py --where loopback --sizes 64 --helpers 0 2 3
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
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

MIB = 1 << 20
ENVIRONMENTS = ("lan", "loopback", "shm")
LIMIT = 1.05
"""Limit for the time with TLS relative to plain, on a LAN of 1 Gbit/s."""
LIMIT_FROM_MIB = 16
"""The limit applies from this size; smaller messages take some microseconds longer."""
PORT = 5101
"""Rank 0 of the first group; each group has the ports after the one before it."""


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
    parser.add_argument("--helpers", type=int, nargs="+", default=[])
    parser.add_argument("--json", type=Path, help="write all rounds to this file")
    options = parser.parse_args()
    if options.worker:
        work(json.loads(options.worker))
        return
    found = {where: measure(where, options) for where in options.where or ENVIRONMENTS}
    show(found)
    if options.json:
        from machine import describe

        text = json.dumps({"machine": describe(), "rate": options.rate, **found})
        options.json.write_text(text + "\n")


def measure(where: str, options: argparse.Namespace) -> dict[str, Any]:
    """Return the rounds of rank 0 and the load of the machine."""
    from ringleader.simulation.lan import lan

    with ExitStack() as stack:
        home = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        files = make_credentials(home)
        if where == "lan":
            net = stack.enter_context(lan(hosts=2, rate=options.rate))
            starts = [host.popen for host in net.hosts]
            hosts = [host.address for host in net.hosts]
        else:
            starts, hosts = [subprocess.Popen] * 2, ["127.0.0.1"] * 2
        job = {"hosts": hosts, "where": where, "sizes": options.sizes}
        job |= {"rounds": options.rounds, "helpers": options.helpers}
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

    torch.set_num_threads(1)
    transport = "auto" if job["where"] == "shm" else "tcp"
    results: dict[str, Any] = {"sizes": {}}
    with ExitStack() as stack:
        groups = {k: stack.enter_context(g) for k, g in form_groups(job, transport)}
        results["links"] = {
            kind: next(iter(group.links().values())) for kind, group in groups.items()
        }
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


def form_groups(job: dict[str, Any], transport: str) -> Iterator[tuple[str, Any]]:
    """Yield a plain group, an encrypted one, and one per number of helpers."""
    import ringleader

    kinds = {"plain": "auto", "tls": "auto"}
    kinds |= {f"tls, {count} helpers": str(count) for count in job["helpers"]}
    for number, (kind, helpers) in enumerate(kinds.items()):
        is_plain = kind == "plain"
        os.environ["RINGLEADER_CREDENTIALS"] = "" if is_plain else job["credentials"]
        os.environ["RINGLEADER_PLAINTEXT"] = "1" if is_plain else "0"
        os.environ["RINGLEADER_HELPER_THREADS"] = helpers
        port = PORT + 2 * number
        peers = [f"{host}:{port + i}" for i, host in enumerate(job["hosts"])]
        yield kind, ringleader.group(peers, job["rank"], transport=transport)


def show(found: dict[str, Any]) -> None:
    """Print a table of medians; ratios are the medians over rounds.

    GB/s are bytes of the tensor per second; ``of plain`` is the speed beside plain TCP.
    """
    print(
        f"{'where':9} {'MiB':>4} {'':15} {'ms':>8} {'GB/s':>6} {'of plain':>8} "
        f"{'time':>7} {'cpu ms':>7}  link"
    )
    for where, result in found.items():
        for size, rows in result["sizes"].items():
            for kind, row in rows.items():
                ratio = statistics.median(
                    b / a for a, b in zip(rows["plain"]["s"], row["s"], strict=True)
                )
                took_s, cpu_s = (statistics.median(row[k]) for k in ("s", "cpu_s"))
                speed = float(size) * MIB / took_s / 1e9
                verdict = ""
                if where == "lan" and float(size) >= LIMIT_FROM_MIB:
                    verdict = "  ok" if ratio <= LIMIT else f"  ABOVE {LIMIT - 1:.0%}"
                print(
                    f"{where:9} {size:>4} {kind:15} {took_s * 1e3:8.2f} {speed:6.3f} "
                    f"{1 / ratio:8.2f} {ratio - 1:+7.1%} {cpu_s * 1e3:7.1f}  "
                    f"{result['links'][kind]}{verdict}"
                )


if __name__ == "__main__":
    main()
