"""Measures how fast a cluster converges after each fault, and what membership costs.

    .venv/bin/python benchmarks/membership.py [--quick]

Times after a fault are virtual: they depend on the profile and the seed (when the last
heartbeat was sent, in which order links open), not on this machine.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable
from random import Random
from statistics import median

from ringleader.membership.member import Member
from ringleader.membership.messages import Heartbeat, Message, decode, encode
from ringleader.simulation.membership.seeded_run import simulate
from ringleader.simulation.membership.simulated_cluster import SimulatedCluster

SIZES = (3, 8, 16, 64)


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--quick", action="store_true", help="fewer seeds and sizes; not for claims"
    )
    is_quick = parser.parse_args().quick
    print(f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores\n")
    show_faults(range(5 if is_quick else 100))
    show_costs(SIZES[:2] if is_quick else SIZES)
    show_simulator(20 if is_quick else 200)


def settled_cluster(size: int, seed: int) -> SimulatedCluster:
    """Return nodes that have converged to one view, the most senior first."""
    cluster = SimulatedCluster(size, seed=seed)
    rng = Random(seed)
    for index, node in enumerate(cluster.nodes):
        cluster.after(rng.uniform(0, 0.5), cluster.start, node, index)
    cluster.run(6.0 + rng.random())
    assert cluster.convergence_problem() is None, cluster.convergence_problem()
    return cluster


def time_to_converge(cluster: SimulatedCluster) -> float:
    """Return the time until every node is in the view it should have."""
    begin_s = cluster.now_s
    while cluster.convergence_problem() is not None:
        assert cluster.now_s < begin_s + 30, cluster.convergence_problem()
        cluster.run(cluster.now_s + 0.01)
    return cluster.now_s - begin_s


def lose_power(cluster: SimulatedCluster) -> None:
    """Cut the power of the leader's host, so that peers see no reset."""
    cluster.kill(cluster.nodes[0], silent=True)


def heal(cluster: SimulatedCluster) -> None:
    """End a partition to which both sides have converged."""
    cluster.split(cluster.nodes[::2], cluster.nodes[1::2])
    time_to_converge(cluster)
    cluster.heal()


def stop_leader(cluster: SimulatedCluster) -> None:
    """Stop the leader for 30 s and continue it."""
    cluster.pause(cluster.nodes[0])
    cluster.run(cluster.now_s + 30)
    cluster.resume(cluster.nodes[0])


FAULTS: dict[str, Callable[[SimulatedCluster], None]] = {
    "leader killed": lambda cluster: cluster.kill(cluster.nodes[0]),
    "leader leaves": lambda cluster: cluster.leave(cluster.nodes[0]),
    "leader loses power": lose_power,
    "one node is cut off": lambda c: void(c.split(c.nodes[3:4], set(c.nodes[:3]))),
    "partition in two": lambda c: void(c.split(c.nodes[::2], c.nodes[1::2])),
    "the partition heals": heal,
    "stopped leader goes on": stop_leader,
    "pair loses its link": lambda c: void(c.block(c.nodes[2], c.nodes[3])),
}


def void(_: object) -> None:
    """Discard a value in a lambda."""


def show_faults(seeds: range) -> None:
    """Print how long convergence takes after each fault, with the LAN profile."""
    print("| 4 nodes, LAN: after | median | worst | new views |\n|---|---|---|---|")
    for name, fault in FAULTS.items():
        times, views = [], []
        for seed in seeds:
            cluster = settled_cluster(4, seed)
            fault(cluster)
            before = len(cluster.checker.views)
            times.append(time_to_converge(cluster))
            views.append(len(cluster.checker.views) - before)
        row = f"{median(times):.2f} s | {max(times):.2f} s | {median(views):g}"
        print(f"| {name} | {row} |")
    print()


def show_costs(sizes: tuple[int, ...]) -> None:
    """Print the CPU time and traffic of an idle node."""
    print(
        "| nodes | idle machine, CPU per s | a heartbeat | encode | decode | "
        "each node sends |\n|---|---|---|---|---|---|"
    )
    for size in sizes:
        cluster = settled_cluster(size, 1)
        begin_s, messages = time.perf_counter(), cluster.num_messages
        cluster.run(cluster.now_s + 4)
        cpu_ms = (time.perf_counter() - begin_s) / 4 / size * 1e3
        per_s = (cluster.num_messages - messages) / 4 / size
        sender, beat = one_heartbeat(cluster)
        data = encode(beat)
        pack_us = microseconds(lambda beat=beat: encode(beat))
        unpack_us = microseconds(lambda d=data, s=sender: decode(d, s))
        rate = per_s * len(data) * 8 / 1e3
        print(
            f"| {size} | {cpu_ms:.2f} ms | {len(data)} B | {pack_us:.0f} us | "
            f"{unpack_us:.0f} us | {rate:,.0f} kbit/s |"
        )
    print()


def one_heartbeat(cluster: SimulatedCluster) -> tuple[Member, Heartbeat]:
    """Return the next heartbeat and its sender."""
    found: list[tuple[Member, Heartbeat]] = []

    def listen(sender: Member, message: Message) -> None:
        if isinstance(message, Heartbeat):
            found.append((sender, message))

    cluster.on_message = listen
    while not found:
        cluster.run(cluster.now_s + 0.1)
    return found[0]


def microseconds(do: Callable[[], object], count: int = 2000) -> float:
    """Return the time of one call in microseconds."""
    begin_s = time.perf_counter()
    for _ in range(count):
        do()
    return (time.perf_counter() - begin_s) / count * 1e6


def show_simulator(num_seeds: int) -> None:
    """Print how many seeds the simulator runs per minute on one core."""
    begin_s = time.process_time()
    results = [simulate(seed, size=8) for seed in range(num_seeds)]
    took_s = time.process_time() - begin_s
    failed = [r.seed for r in results if r.failure]
    per_minute = 60 * num_seeds / took_s
    print(f"simulator, 8 nodes: {per_minute:,.0f} seeds per minute of one core")
    print(f"{num_seeds} seeds, failed: {failed or 'none'}")


if __name__ == "__main__":
    main()
