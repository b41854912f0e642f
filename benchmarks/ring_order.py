"""Compares the measured ring order with the worst one, with one slow pair of hosts.

    sudo .venv/bin/python benchmarks/ring_order.py [--mib 16] [--json FILE]

One process per host of a virtual LAN measures its links to the others; pairs that
share no host measure at the same time. The ring order is computed from the results.
Then the same processes form one group in that order and one in the worst order, and
time the same ring all-reduce in both; every result is compared with the exact sum. A
time is that of the best round on the slowest rank.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import socket
import subprocess
import sys
import time
from datetime import UTC, datetime
from itertools import permutations
from pathlib import Path
from typing import Any

from ringleader.deadline import Deadline
from ringleader.ids import NodeId
from ringleader.simulation.lan import VirtualLan, can_make_faults, lan
from ringleader.topology.cluster_graph import ClusterGraph, Node
from ringleader.topology.link_profile import LinkProfile, measurement_rounds
from ringleader.topology.link_speed import measure_receiving, measure_sending
from ringleader.topology.node_profile import measure

PROBE_PORT, GROUP_PORT = 5900, 5910
PROBE_S, START_S = 5.0, 60.0
SLOW = (0, 1)
"""The slow pair of hosts; they are neighbours in a ring ordered by node id."""


# -- one host ----------------------------------------------------------------------


def work(job: dict[str, Any]) -> None:
    """Measure the links, then time the orders that arrive on stdin."""
    links, seconds = probe_all(job["rank"], job["addresses"])
    reply({"links": links, "seconds": seconds})
    import torch

    torch.set_num_threads(1)
    reply("ready")
    for line in sys.stdin:
        reply(time_order(job, json.loads(line)))


def probe_all(rank: int, addresses: list[str]) -> tuple[dict[int, list[float]], float]:
    """Measure the links to all others; return them by rank, and the total time."""
    found: dict[int, LinkProfile] = {}
    with socket.create_server((addresses[rank], PROBE_PORT)) as server:
        server.settimeout(START_S)
        reply("listening")
        sys.stdin.readline()
        started_s = time.perf_counter()
        for pairs in measurement_rounds(len(addresses)):
            for a, b in pairs:
                if rank == a:
                    found[b] = probe_first((addresses[b], PROBE_PORT))
                elif rank == b:
                    found[a] = probe_second(server)
        seconds = time.perf_counter() - started_s
    rates = {
        peer: [link.latency_s, link.out_bytes_per_s, link.in_bytes_per_s]
        for peer, link in found.items()
    }
    return rates, seconds


def probe_first(address: tuple[str, int]) -> LinkProfile:
    with socket.create_connection(address, PROBE_S) as sock:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return measure_sending(sock, Deadline.after(PROBE_S), peer=address[0])


def probe_second(server: socket.socket) -> LinkProfile:
    sock, address = server.accept()
    with sock:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return measure_receiving(sock, Deadline.after(PROBE_S), peer=str(address[0]))


def time_order(job: dict[str, Any], order: list[int]) -> dict[str, Any]:
    """Time a ring all-reduce among the hosts in ``order``."""
    import torch

    import ringleader

    port = GROUP_PORT + order.index(1)  # two orders in a row need different ports
    peers = [f"{job['addresses'][host]}:{port}" for host in order]
    config = ringleader.CollectiveConfig(local_all_reduce="ring")
    rank = order.index(job["rank"])
    times = []
    os.environ["RINGLEADER_PLAINTEXT"] = "1"
    with ringleader.group(
        peers, rank, transport="tcp", config=config, timeout_s=START_S
    ) as group:
        tensor = torch.empty(job["bytes"] // 4)
        for _ in range(job["rounds"]):
            tensor.fill_(rank + 1)
            group.barrier()
            started_s = time.perf_counter()
            group.all_reduce(tensor)
            times.append(time.perf_counter() - started_s)
        want = group.size * (group.size + 1) / 2
        is_right = bool((tensor == want).all())
        group.barrier()
    return {"seconds": min(times), "right": is_right}


def reply(value: object) -> None:
    print(json.dumps(value), flush=True)


# -- the driver --------------------------------------------------------------------


def main() -> None:
    options = parse(sys.argv[1:])
    if options.worker:
        work(json.loads(options.worker))
        return
    is_possible, reason = can_make_faults()
    if not is_possible:
        sys.exit(f"this benchmark needs a virtual LAN: {reason}")
    with lan(hosts=options.hosts, rate=options.rate) as net:
        net.slow_pair(*SLOW, options.slow)
        result = compare(net, options)
    result["machine"] = {
        "cpu": measure().chip,
        "cores": os.cpu_count(),
        "load": os.getloadavg()[0],
        "python": platform.python_version(),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
    }
    if options.json:
        Path(options.json).write_text(json.dumps(result, indent=2) + "\n")
    show(result)


def parse(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--hosts", type=int, default=4)
    parser.add_argument("--rate", default="1gbit")
    parser.add_argument(
        "--slow", default="100mbit", help="rate between the first two hosts"
    )
    parser.add_argument("--mib", type=int, default=16, help="size of the tensor")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", help="also write the results to this file")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    return parser.parse_args(argv)


def compare(net: VirtualLan, options: argparse.Namespace) -> dict[str, Any]:
    """Measure the links, compute the order, time it and the worst order."""
    workers = start(net, options)
    try:
        reports = [receive(worker) for worker in workers]
        topology = build(reports)
        best = [int(node) for node in topology.ring_order()]
        worst = worst_order(topology)
        for worker in workers:
            assert receive(worker) == "ready"
        runs = {
            name: time_on_all(workers, order)
            for name, order in (("measured", best), ("worst", worst))
        }
    finally:
        for worker in workers:
            worker.kill()
            worker.communicate()
    return {
        "what": f"{options.mib} MiB ring all-reduce, {options.hosts} hosts, "
        f"{options.rate}, {options.slow} between hosts {SLOW[0]} and {SLOW[1]}",
        "links": [report["links"] for report in reports],
        "probe_s": max(report["seconds"] for report in reports),
        "orders": {"measured": best, "worst": worst},
        "seconds": runs,
        "ratio": runs["worst"] / runs["measured"],
    }


def start(net: VirtualLan, options: argparse.Namespace) -> list[subprocess.Popen[str]]:
    """Start one process per host; all listen before the first one connects."""
    job = {
        "addresses": [host.address for host in net.hosts],
        "bytes": options.mib << 20,
        "rounds": options.rounds,
    }
    workers = [
        host.popen(
            [sys.executable, __file__, "--worker", json.dumps({**job, "rank": rank})],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank, host in enumerate(net.hosts)
    ]
    for worker in workers:
        assert receive(worker) == "listening"
    for worker in workers:
        send(worker, "go")
    return workers


def build(reports: list[dict[str, Any]]) -> ClusterGraph:
    """Build the topology from the measurements of all nodes."""
    profile = measure()
    topology = ClusterGraph()
    for i in range(len(reports)):
        topology.add_node(Node(id=NodeId(str(i)), profile=profile))
    for here, report in enumerate(reports):
        for there, figures in report["links"].items():
            topology.set_link(NodeId(str(here)), NodeId(there), LinkProfile(*figures))
    return topology


def worst_order(topology: ClusterGraph) -> list[int]:
    """Find the ring with the slowest hop by trying all orders."""
    first, *others = sorted(int(node.id) for node in topology.nodes())

    def slowest(order: tuple[int, ...]) -> float:
        hops = zip(order, (*order[1:], order[0]), strict=True)
        links = [topology.link(NodeId(str(a)), NodeId(str(b))) for a, b in hops]
        return min(link.out_bytes_per_s for link in links if link is not None)

    rings = [(first, *rest) for rest in permutations(others)]
    return list(min(rings, key=slowest))


def time_on_all(workers: list[subprocess.Popen[str]], order: list[int]) -> float:
    for worker in workers:
        send(worker, order)
    replies = [receive(worker) for worker in workers]
    assert all(each["right"] for each in replies), "wrong sum"
    return max(float(each["seconds"]) for each in replies)


def send(worker: subprocess.Popen[str], value: object) -> None:
    assert worker.stdin is not None
    worker.stdin.write(json.dumps(value) + "\n")
    worker.stdin.flush()


def receive(worker: subprocess.Popen[str]) -> Any:  # noqa: ANN401 (JSON)
    assert worker.stdout is not None
    line = worker.stdout.readline()
    assert line, "a worker died; its output is above"
    return json.loads(line)


def show(result: dict[str, Any]) -> None:
    print(result["what"])
    print(f"links measured in {result['probe_s']:.2f} s; MB/s out:")
    for here, row in enumerate(result["links"]):
        cells = [
            f"{row[str(b)][1] / 1e6:8.1f}" if str(b) in row else f"{'-':>8}"
            for b in range(len(result["links"]))
        ]
        print(f"  host {here}: {' '.join(cells)}")
    for name, order in result["orders"].items():
        ring = " -> ".join(map(str, [*order, order[0]]))
        print(f"{name:>9}: {ring:24} {result['seconds'][name]:.3f} s")
    print(f"the measured order is {result['ratio']:.2f} times faster")


if __name__ == "__main__":
    main()
