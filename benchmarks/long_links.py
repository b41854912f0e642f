"""Measures all_reduce between two hosts that are far from each other, beside Gloo.

The hosts are network namespaces (root) at the ends of a link with a rate and a round
trip. Every rank holds a group per number of connections and one of Gloo, and calls them
in turn, each after a pause as between two steps. The share of the wire: two ranks send
the whole tensor once, each way, and the last byte arrives half a round trip later.

    .venv/bin/python benchmarks/long_links.py
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

    import ringleader

MIB = 1 << 20
LIMIT_S = 900.0
GLOO = "gloo"
NETWORK = Path("/proc/sys/net")
SETTINGS = ("ipv4/tcp_wmem", "ipv4/tcp_rmem", "core/wmem_max")


def main() -> None:
    """Measure every round trip, print and write the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    parser.add_argument("--rate", type=int, default=1000, help="Mbit/s, each way")
    parser.add_argument(
        "--round-trips", type=float, nargs="+", default=[1, 10, 20, 40, 100], help="ms"
    )
    parser.add_argument(
        "--congestion", default="cubic", help="what TCP sends by; Linux's own is cubic"
    )
    parser.add_argument("--connections", nargs="+", type=int, default=[1, 4])
    parser.add_argument("--sizes", type=float, nargs="+", default=[4, 16, 64])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--pause-s", type=float, default=0.3)
    parser.add_argument("--no-file", action="store_true", help="write no results")
    options = parser.parse_args()
    if options.worker:
        work(json.loads(options.worker))
        return
    from machine import describe
    from results_file import dated, save

    kernel = {name: (NETWORK / name).read_text().strip() for name in SETTINGS}
    results: dict[str, Any] = {
        "machine": describe(),
        "kernel": {"release": platform.release(), **kernel},
        "congestion": options.congestion,
        "rate_mbit": options.rate,
    }
    for milliseconds in options.round_trips:
        found = measure(milliseconds, options)
        results[f"{milliseconds:g} ms"] = found
        show(milliseconds, found, options.rate)
    if not options.no_file:
        save(dated(f"long-links-{options.congestion}"), results)


def measure(milliseconds: float, options: argparse.Namespace) -> dict[str, Any]:
    """Run both ranks over a link with this round trip; return rank 0's rounds."""
    from ringleader.simulation.lan import lan, long_cable

    round_trip_s = milliseconds / 1e3
    with lan(hosts=2) as net:
        one, other = net.hosts
        cable = long_cable(
            one,
            other,
            round_trip_s=round_trip_s,
            mbit_s=options.rate,
            congestion=options.congestion,
        )
        with cable as addresses:
            job = {
                "addresses": addresses,
                "connections": options.connections,
                "sizes": options.sizes,
                "rounds": options.rounds,
                "pause_s": options.pause_s,
            }
            ranks = [
                host.popen(
                    [
                        sys.executable,
                        __file__,
                        "--worker",
                        json.dumps({**job, "rank": rank}),
                    ],
                    stdout=subprocess.PIPE,
                    text=True,
                )
                for rank, host in enumerate(net.hosts)
            ]
            outputs = [rank.communicate(timeout=LIMIT_S)[0] for rank in ranks]
    if any(rank.returncode for rank in ranks):
        sys.exit("a rank failed, see above")
    found: dict[str, Any] = json.loads(outputs[0])
    return found


def work(job: dict[str, Any]) -> None:
    """Run one rank."""
    import torch
    import torch.distributed as dist

    import ringleader
    from ringleader.simulation.lan.cable_carrier import DEVICE

    torch.set_num_threads(1)
    os.environ["RINGLEADER_PLAINTEXT"] = "1"
    rank, addresses = job["rank"], job["addresses"]
    results: dict[str, Any] = {}
    with ExitStack() as stack:
        groups = {}
        for number, connections in enumerate(job["connections"]):
            peers = [f"{address}:{5100 + number}" for address in addresses]
            group = ringleader.group(peers, rank, connections=connections)
            name = group.links()[1 - rank]
            groups[name] = stack.enter_context(group)
        os.environ["GLOO_SOCKET_IFNAME"] = DEVICE
        store = f"tcp://{addresses[0]}:5000"
        dist.init_process_group(GLOO, init_method=store, rank=rank, world_size=2)
        stack.callback(dist.destroy_process_group)
        for size in job["sizes"]:
            tensor = torch.zeros(int(size * MIB) // 4)
            found = time_all(tensor, {**groups, GLOO: None}, job)
            results[f"{size:g} MiB"] = found
    if rank == 0:
        print(json.dumps(results))


def time_all(
    tensor: torch.Tensor,
    groups: dict[str, ringleader.Group | None],
    job: dict[str, Any],
) -> dict[str, list[float]]:
    """Return the seconds of the slowest rank in each round, by group."""
    import torch
    import torch.distributed as dist

    rows: dict[str, list[float]] = {name: [] for name in groups}
    for turn in range(job["rounds"] + 1):
        for name, group in groups.items():
            took_s = time_one(tensor, group, job["pause_s"])
            if turn:  # the first round warms up
                rows[name].append(took_s)
    for row in rows.values():
        slowest = torch.tensor(row)
        dist.all_reduce(slowest, dist.ReduceOp.MAX)
        row[:] = slowest.tolist()
    return rows


def time_one(
    tensor: torch.Tensor, group: ringleader.Group | None, pause_s: float
) -> float:
    """Return the seconds of one call on this rank; ``group`` None is Gloo."""
    import torch.distributed as dist

    meet = dist.barrier if group is None else group.barrier
    reduce = dist.all_reduce if group is None else group.all_reduce
    tensor.fill_((dist.get_rank() if group is None else group.rank) + 1)
    meet()
    time.sleep(pause_s)
    meet()
    began_s = time.perf_counter()
    reduce(tensor)
    took_s = time.perf_counter() - began_s
    if not bool((tensor == 3).all()):
        raise SystemExit("all_reduce gives wrong values")
    return took_s


def show(milliseconds: float, found: dict[str, Any], rate: int) -> None:
    """Print a line per size: medians, times Gloo, share of the wire."""
    print(f"{rate} Mbit/s, round trip {milliseconds:g} ms")
    for size, rows in found.items():
        median_s = {name: statistics.median(row) for name, row in rows.items()}
        wire_s = float(size.split()[0]) * MIB * 8 / (rate * 1e6) + milliseconds / 2e3
        cells = [
            f"{name} {took_s * 1e3:.0f} ms ({median_s[GLOO] / took_s:.2f}x Gloo, "
            f"{wire_s / took_s:.2f} of the wire)"
            for name, took_s in median_s.items()
        ]
        print(f"  {size:>6}: " + "; ".join(cells), flush=True)


if __name__ == "__main__":
    main()
