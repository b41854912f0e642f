"""Measures the cost of TLS: the same all_reduce over plain and over encrypted links.

Every rank holds three groups and calls them in turn, so that a disturbance of the
machine affects all: plain, encrypted as by default (sealed records), and encrypted as
with a peer that has only TLS records. The virtual LAN needs root; ``--where loopback``
and ``--where shm`` do not.

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
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import ringleader

MIB = 1 << 20
ENVIRONMENTS = ("lan", "loopback", "shm")
LIMIT = 1.05
"""Limit for the time with TLS relative to plain, on a LAN of 1 Gbit/s."""
LIMIT_FROM_MIB = 16
"""The limit applies from this size; smaller messages take some microseconds longer."""
PORTS = {"plain": 5101, "tls": 5201, "tls records": 5301}


def main() -> None:
    """Measure in every environment in turn and print the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    parser.add_argument("--where", choices=ENVIRONMENTS, action="append")
    parser.add_argument(
        "--rate", default="1gbit", help="rate of the LAN, in tc's units"
    )
    parser.add_argument("--sizes", type=float, nargs="+", default=[16, 64], help="MiB")
    parser.add_argument("--hosts", type=int, default=2, help="ranks, one per host")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--json", type=Path, help="write all rounds to this file")
    options = parser.parse_args()
    if options.worker:
        work(json.loads(options.worker))
        return
    found = {
        where: measure(
            where, options.rate, options.hosts, options.sizes, options.rounds
        )
        for where in options.where or ENVIRONMENTS
    }
    show(found)
    if options.json:
        from machine import describe

        about = {"rate": options.rate, "hosts": options.hosts}
        text = json.dumps({"machine": describe(), **about, **found})
        options.json.write_text(text + "\n")


def measure(
    where: str, rate: str, num_hosts: int, sizes: list[float], rounds: int
) -> dict[str, Any]:
    """Return the rounds of rank 0 and the load of the machine."""
    from ringleader.simulation.lan import lan

    with ExitStack() as stack:
        home = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        files = make_credentials(home, num_hosts)
        if where == "lan":
            net = stack.enter_context(lan(hosts=num_hosts, rate=rate))
            starts = [host.popen for host in net.hosts]
            hosts = [host.address for host in net.hosts]
        else:
            starts = [subprocess.Popen] * num_hosts
            hosts = ["127.0.0.1"] * num_hosts
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


def make_credentials(home: Path, num_hosts: int) -> list[str]:
    """Create the credential files of nodes of one cluster; return their paths."""
    from ringleader.identity.cluster_secret import ClusterSecret, Secret
    from ringleader.identity.credentials import Credentials
    from ringleader.identity.node_key import NodeKey

    cluster = ClusterSecret(root=Secret(os.urandom(32)))
    paths = [home / f"rank{rank}" for rank in range(num_hosts)]
    for path in paths:
        Credentials.issue(cluster, NodeKey.ephemeral()).to_file(path)
    return [str(path) for path in paths]


def work(job: dict[str, Any]) -> None:
    """Run one rank: both groups, all sizes."""
    import torch

    torch.set_num_threads(1)
    results: dict[str, Any] = {"links": {}, "sizes": {}}
    with ExitStack() as stack:
        groups = {kind: stack.enter_context(form(job, kind)) for kind in PORTS}
        for kind, group in groups.items():
            results["links"][kind] = next(iter(group.links().values()))
        for size in job["sizes"]:
            tensor = torch.zeros(int(size * MIB) // 4)
            rows: dict[str, Any] = {kind: {"s": [], "cpu_s": []} for kind in groups}
            for turn in range(job["rounds"] + 1):
                for kind, group in groups.items():
                    tensor.fill_(group.rank + 1)
                    total = group.size * (group.size + 1) // 2
                    group.barrier()
                    cpu_s, began_s = time.process_time(), time.perf_counter()
                    group.all_reduce(tensor)
                    took_s = time.perf_counter() - began_s
                    used_s = time.process_time() - cpu_s
                    assert bool((tensor == total).all())
                    if turn:  # the first round warms up
                        rows[kind]["s"].append(took_s)
                        rows[kind]["cpu_s"].append(used_s)
            results["sizes"][f"{size:g}"] = rows
    if job["rank"] == 0:
        print(json.dumps(results))


def form(job: dict[str, Any], kind: str) -> ringleader.Group:
    """Form the group with one kind of links."""
    is_plain = kind == "plain"
    os.environ["RINGLEADER_CREDENTIALS"] = "" if is_plain else job["credentials"]
    os.environ["RINGLEADER_PLAINTEXT"] = "1" if is_plain else "0"
    peers = [f"{host}:{PORTS[kind] + i}" for i, host in enumerate(job["hosts"])]
    transport = "auto" if job["where"] == "shm" else "tcp"
    with only_tls_records() if kind == "tls records" else nullcontext():
        return ringleader.group(peers, job["rank"], transport=transport)


@contextmanager
def only_tls_records() -> Iterator[None]:
    """Load credentials that do not offer sealed records."""
    from ringleader.groups import link_credentials
    from ringleader.identity.certificates import tls_context

    offers, tls_context.can_seal = tls_context.can_seal, lambda: False
    link_credentials._loaded.clear()
    try:
        yield
    finally:
        tls_context.can_seal = offers
        link_credentials._loaded.clear()


def show(found: dict[str, Any]) -> None:
    """Print a table of medians; the ratio is the median over pairs of rounds."""
    print(
        f"{'where':9} {'MiB':>4} {'links':12} {'ms':>8} {'MB/s':>6} "
        f"{'of plain':>8} {'cpu ms':>7}"
    )
    for where, result in found.items():
        for size, rows in result["sizes"].items():
            for kind, row in rows.items():
                show_row(where, size, kind, row, rows["plain"])


def show_row(
    where: str, size: str, kind: str, row: dict[str, Any], plain: dict[str, Any]
) -> None:
    """Print one kind of links: time, speed, speed relative to plain, CPU time."""
    pairs = zip(plain["s"], row["s"], strict=True)
    ratio = statistics.median(a / b for a, b in pairs)
    took_s, cpu_s = (statistics.median(row[k]) for k in ("s", "cpu_s"))
    speed = float(size) * MIB / took_s / 1e6
    verdict = ""
    if kind == "tls" and where == "lan" and float(size) >= LIMIT_FROM_MIB:
        verdict = "  ok" if 1 / ratio <= LIMIT else f"  ABOVE {LIMIT - 1:.0%}"
    print(
        f"{where:9} {size:>4} {kind:12} {took_s * 1e3:8.2f} {speed:6.0f} "
        f"{ratio:8.3f} {cpu_s * 1e3:7.1f}{verdict}"
    )


if __name__ == "__main__":
    main()
