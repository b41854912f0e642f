"""Compares predicted with measured times of an all_reduce at 1 and 10 Gbit/s.

One process per host of a virtual LAN (root) holds a plain and an encrypted group and
calls them in turn. There are two predictions, both by the cost model with the algorithm
that it chooses: from the profile of such a network (``ringleader simulate --profile``),
and from the links that the group itself measured when it was formed.

All hosts of the LAN share the cores of this machine, so their speed is measured first:
the same ranks all_reduce 16 KiB and 16 MiB while no cable is limited. What a step takes
and what one core copies follow from these times, and the predictions use them. Where
they say that hosts are slower than the wire, the case is about this machine and not
about the network, and is marked so.

    sudo .venv/bin/python benchmarks/predicted.py
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
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

Links = list[list[list[float] | None]]
"""Latency and bandwidth from each rank to each, as measured by a group."""

MIB = 1 << 20
PROFILE_OF = {"1gbit": "1gbe", "2.5gbit": "2.5gbe", "10gbit": "10gbe"}
KINDS = {"plain": 5101, "tls": 5201}
"""Kind of the links -> port of rank 0."""
LIMIT = 0.15
HOST_BYTES = 16 * MIB
HOST_ROUNDS = 5
STEP_BYTES = 16 << 10
STEP_ROUNDS = 25
WAIT_S = 300.0


def main() -> None:
    """Measure all cases, print the table and the verdicts, write the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    parser.add_argument("--rates", nargs="+", default=["1gbit", "10gbit"])
    parser.add_argument("--hosts", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--sizes", type=float, nargs="+", default=[1, 16, 64])
    parser.add_argument("--links", nargs="+", choices=KINDS, default=list(KINDS))
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--json", type=Path, help="instead of today's file in results/")
    options = parser.parse_args()
    if options.worker:
        work(json.loads(options.worker))
        return
    unknown = set(options.rates) - set(PROFILE_OF)
    if unknown or options.rounds < 5:
        parser.error(f"rates are {', '.join(PROFILE_OF)}; rounds at least 5")
    from machine import describe
    from results_file import dated, save

    if "tls" in options.links and find_spec("cryptography") is None:
        print("without the package cryptography: plain links only", flush=True)
        options.links.remove("tls")
    started_s, load = time.perf_counter(), os.getloadavg()[0]
    cells = []
    print(HEAD, flush=True)
    for rate in options.rates:
        for hosts in options.hosts:
            job = {"sizes": options.sizes, "rounds": options.rounds}
            for cell in measure(rate, hosts, {**job, "kinds": options.links}):
                cells.append(cell)
                print(line(cell), flush=True)
    results: dict[str, object] = {
        "machine": describe(),
        "command": " ".join(["benchmarks/predicted.py", *sys.argv[1:]]),
        "load_before": load,
        "load_after": os.getloadavg()[0],
        "priority": priority(),
        "seconds": round(time.perf_counter() - started_s),
        "bars": verdicts(cells),
        "cells": cells,
    }
    file = options.json or dated("predicted")
    save(file, results)
    print(f"{results['seconds']} s, load before {load:.1f}; written to {file}")


def priority() -> str:
    """Return how this process is preferred to others of a busy machine."""
    group = Path("/proc/self/autogroup")
    session = group.read_text().split()[-1] if group.exists() else "unknown"
    return f"nice {os.nice(0)}, nice of its session {session}"


# -- one case ----------------------------------------------------------------------


def measure(rate: str, hosts: int, job: dict[str, Any]) -> list[dict[str, Any]]:
    """Measure on one LAN; return one cell per size and kind of links."""
    from ringleader.simulation.lan import lan

    with ExitStack() as stack:
        home = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        with_tls = "tls" in job["kinds"]
        files = make_credentials(home, hosts) if with_tls else [""] * hosts
        net = stack.enter_context(lan(hosts=hosts, rate=rate))
        job = {**job, "hosts": [h.address for h in net.hosts]}
        workers = [
            host.popen(
                [
                    *(sys.executable, __file__, "--worker"),
                    json.dumps({**job, "rank": rank, "credentials": files[rank]}),
                ],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            for rank, host in enumerate(net.hosts)
        ]
        hear(workers)
        for host in net.hosts:
            net.set_rate(host.number, None)
        say(workers)
        hear(workers)
        for host in net.hosts:
            net.set_rate(host.number, rate)
        say(workers)
        ranks = [json.loads(text) for text in hear(workers)]
        for worker in workers:
            worker.wait(timeout=WAIT_S)
    return [
        cell_of(rate, size, kind, ranks)
        for size in (f"{size:g}" for size in job["sizes"])
        for kind in job["kinds"]
    ]


def say(workers: list[subprocess.Popen[str]]) -> None:
    """Let all workers go on."""
    for worker in workers:
        assert worker.stdin is not None
        worker.stdin.write("go\n")
        worker.stdin.flush()


def hear(workers: list[subprocess.Popen[str]]) -> list[str]:
    """Return a line of each worker; groups end a worker that waits too long."""
    lines = [worker.stdout.readline() for worker in workers if worker.stdout]
    if not all(lines):
        sys.exit("a rank failed, see above")
    return lines


def make_credentials(home: Path, count: int) -> list[str]:
    """Create the credential files of the nodes of one cluster; return their paths."""
    from ringleader.identity.cluster_secret import ClusterSecret, Secret
    from ringleader.identity.credentials import Credentials
    from ringleader.identity.node_key import NodeKey

    cluster = ClusterSecret(root=Secret(os.urandom(32)))
    paths = [home / f"rank{rank}" for rank in range(count)]
    for path in paths:
        Credentials.issue(cluster, NodeKey.ephemeral()).to_file(path)
    return [str(path) for path in paths]


def cell_of(
    rate: str, size: str, kind: str, ranks: list[dict[str, Any]]
) -> dict[str, Any]:
    """Compare one case with its predictions; a round takes as long as its last rank."""
    found = [rank["sizes"][size][kind] for rank in ranks]
    seconds = [max(took) for took in zip(*(f["s"] for f in found), strict=True)]
    median_s = statistics.median(seconds)
    host = {
        key: statistics.median(
            max(took) for took in zip(*(r[key][kind] for r in ranks), strict=True)
        )
        for key in ("host_s", "steps_s")
    }
    seen, algorithm = ranks[0][kind], found[0]["algorithm"]
    predicted = predictions(rate, int(float(size) * MIB), host, seen, algorithm)
    latencies, speeds = zip(*(x for row in seen for x in row if x), strict=True)
    cores = os.cpu_count() or 1
    used = sum(f["cpu_s"] for f in found) / (cores * sum(seconds))
    ratios = {k: round(median_s / predicted[k], 3) for k in ("profile", "links")}
    return {
        "rate": rate,
        "hosts": len(ranks),
        "MiB": float(size),
        "links": kind,
        "algorithm": algorithm,
        "measured_ms": round(median_s * 1e3, 2),
        "rounds_ms": [round(s * 1e3, 2) for s in seconds],
        "predicted_ms": {k: round(predicted[k] * 1e3, 2) for k in ratios},
        "ratio": ratios,
        "limit": predicted["limit"],
        "wire_share": round(predicted["bound"] / median_s, 3),
        "link_MB_per_s": round(statistics.median(speeds) / 1e6),
        "link_us": round(statistics.median(latencies) * 1e6),
        "host_step_us": round(predicted["step"] * 1e6),
        "host_copy_GB_per_s": round(predicted["copy"] / 1e9, 2),
        "cpu_share": round(used, 2),
        "machine_busy": round(statistics.median(f["busy"] for f in found), 2),
    }


def predictions(
    rate: str, num_bytes: int, host: dict[str, float], seen: Links, algorithm: str
) -> dict[str, Any]:
    """Predict from the profile and from measured links, with this host's speed.

    The profile chooses an algorithm, the measured links have that of the group.
    """
    from ringleader.collectives.cost_model import LinkCost, predict_s
    from ringleader.collectives.schedule_profile import profile
    from ringleader.simulation.collectives.wire_profile import PROFILES, predict_on

    wire, size = PROFILES[PROFILE_OF[rate]], len(seen)
    copy = copy_speed(host["host_s"], size)
    least_s = step_latency(host["steps_s"], size)
    wire = replace(wire, latency_s=max(wire.latency_s, least_s))
    expected = replace(wire.network(size), copy_bandwidth=copy)
    rows = tuple(
        tuple(link and LinkCost(max(link[0], least_s), link[1]) for link in row)
        for row in seen
    )
    shape = profile("all_reduce", algorithm, size, 0, 2)
    idle = replace(expected, copy_bandwidth=1e15, reduce_bandwidth=1e15)
    profile_s = predict_on(wire, num_bytes, expected)[1]
    return {
        "profile": profile_s,
        "links": predict_s(shape, num_bytes, replace(expected, links=rows)),
        "limit": "host"
        if profile_s > 1.001 * predict_on(wire, num_bytes, idle)[1]
        else "wire",
        "bound": wire.bound_s(num_bytes, size),
        "copy": copy,
        "step": least_s,
    }


def copy_speed(host_s: float, size: int) -> float:
    """Return the speed of one core that explains ``host_s`` without a wire.

    A rank of a ring copies 2(n-1)/n of the tensor out and as much in, and adds half
    of that; the speed of additions is left at that of the cost model.
    """
    from ringleader.collectives.cost_model import Network

    share = (size - 1) / size
    added_s = share * HOST_BYTES / Network.unknown(2).reduce_bandwidth
    return 4 * share * HOST_BYTES / max(host_s - added_s, host_s / 10)


def step_latency(steps_s: float, size: int) -> float:
    """Return the latency that explains the time of a small ring without a wire."""
    from ringleader.collectives.cost_model import Network, predict_s
    from ringleader.collectives.schedule_profile import profile

    shape = profile("all_reduce", "ring", size, 0, 2)
    network = Network.unknown(size)
    rows = tuple(
        tuple(replace(x, latency_s=0.0) for x in r if x) for r in network.links
    )
    own_s = predict_s(shape, 0, replace(network, links=rows))
    return max(0.0, steps_s - own_s) / shape.depth


# -- one host ----------------------------------------------------------------------


def work(job: dict[str, Any]) -> None:
    """Run one rank: form both groups, measure the host, then all sizes."""
    import torch

    import ringleader
    from ringleader.groups.group import handle_of

    torch.set_num_threads(1)
    rank = job["rank"]
    results: dict[str, Any] = {"host_s": {}, "steps_s": {}, "sizes": {}}
    with ExitStack() as stack:
        groups = {}
        for kind in job["kinds"]:
            is_tls, port = kind == "tls", KINDS[kind]
            os.environ["RINGLEADER_CREDENTIALS"] = job["credentials"] if is_tls else ""
            os.environ["RINGLEADER_PLAINTEXT"] = "0" if is_tls else "1"
            peers = [f"{host}:{port + i}" for i, host in enumerate(job["hosts"])]
            group = ringleader.group(peers, rank, transport="tcp", timeout_s=WAIT_S)
            groups[kind] = stack.enter_context(group)
            results[kind] = [
                [link and [link.latency_s, link.bandwidth] for link in row]
                for row in handle_of(group).network.links
            ]
        wait_for_go()
        for kind, group in groups.items():
            for key, size, count in (
                ("host_s", HOST_BYTES, HOST_ROUNDS),
                ("steps_s", STEP_BYTES, STEP_ROUNDS),
            ):
                found = rounds({kind: group}, size, count, {"algorithm": "ring"})
                results[key][kind] = found[kind]["s"]
        wait_for_go()
        for size in job["sizes"]:
            found = rounds(groups, int(size * MIB), job["rounds"], {})
            results["sizes"][f"{size:g}"] = found
        print(json.dumps(results), flush=True)


def wait_for_go() -> None:
    """Tell the benchmark that this rank is ready, and wait for it."""
    print("ready", flush=True)
    if not sys.stdin.readline():
        sys.exit("the benchmark has ended")


def rounds(
    groups: dict[str, Any], num_bytes: int, count: int, arguments: dict[str, str]
) -> dict[str, dict[str, Any]]:
    """Time rounds of all groups in turn, after one that warms up."""
    import torch

    tensor = torch.zeros(num_bytes // 4)
    found: dict[str, dict[str, Any]] = {}
    for kind, group in groups.items():
        chosen = arguments.get("algorithm", group.choice("all_reduce", num_bytes)[0])
        found[kind] = {"s": [], "cpu_s": 0.0, "algorithm": chosen}
    busy = {kind: [0.0, 0.0] for kind in groups}
    for turn in range(count + 1):
        for kind, group in groups.items():
            tensor.fill_(group.rank + 1)
            group.barrier()
            before, cpu_s = ticks(), time.process_time()
            began_s = time.perf_counter()
            group.all_reduce(tensor, **arguments)
            took_s = time.perf_counter() - began_s
            cpu_s, after = time.process_time() - cpu_s, ticks()
            assert bool((tensor == group.size * (group.size + 1) / 2).all())
            if turn:
                found[kind]["s"].append(took_s)
                found[kind]["cpu_s"] += cpu_s
                for i in range(2):
                    busy[kind][i] += after[i] - before[i]
    for kind, (worked, passed) in busy.items():
        found[kind]["busy"] = worked / passed if passed else 0.0
    return found


def ticks() -> tuple[float, float]:
    """Return how long all cores of the machine worked, and how long they were there."""
    values = [int(v) for v in Path("/proc/stat").read_text().split("\n")[0].split()[1:]]
    return sum(values[:8]) - values[3] - values[4], sum(values[:8])


# -- the table ---------------------------------------------------------------------

HEAD = (
    f"{'rate':8}{'hosts':>5} {'MiB':>4} {'links':6}{'algorithm':10}{'measured':>9} "
    f"{'profile':>9} {'ratio':>5} {'own links':>10} {'ratio':>5} {'limit':>5} "
    f"{'of wire':>7} {'cpu':>5} {'busy':>5}"
)


def line(cell: dict[str, Any]) -> str:
    """Return a line of the table."""
    predicted, ratio = cell["predicted_ms"], cell["ratio"]
    return (
        f"{cell['rate']:8}{cell['hosts']:5} {cell['MiB']:4g} {cell['links']:6}"
        f"{cell['algorithm']:10}{cell['measured_ms']:6.1f} ms "
        f"{predicted['profile']:6.1f} ms {ratio['profile']:5.2f} "
        f"{predicted['links']:7.1f} ms {ratio['links']:5.2f} {cell['limit']:>5} "
        f"{cell['wire_share']:7.0%} {cell['cpu_share']:5.0%} "
        f"{cell['machine_busy']:5.0%}"
    )


def verdicts(cells: list[dict[str, Any]]) -> list[dict[str, object]]:
    """Return one bar per rate and prediction, for what the wire limits and the rest."""
    from results_file import bar

    bars = []
    for rate in dict.fromkeys(cell["rate"] for cell in cells):
        for limit in ("wire", "host"):
            some = [c for c in cells if (c["rate"], c["limit"]) == (rate, limit)]
            for source in ("profile", "links"):
                near = sum(abs(c["ratio"][source] - 1) <= LIMIT for c in some)
                if some:
                    where = "" if limit == "wire" else ", limited by this machine"
                    bars.append(
                        bar(
                            f"{rate}{where}: within {LIMIT:.0%} of the "
                            f"{'profile' if source == 'profile' else 'measured links'}",
                            f"{near} of {len(some)} cells",
                            is_met=near == len(some),
                        )
                    )
    return bars


if __name__ == "__main__":
    main()
