"""What membership costs, and how fast a cluster is whole again after each fault.

    .venv/bin/python benchmarks/membership.py [--quick]

Times after a fault are of the virtual clock: they depend on the profile and on chance
(when the last heartbeat was, in which order links open), not on this machine.
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
    """Print three tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a look, no claim")
    is_quick = parser.parse_args().quick
    print(f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores\n")
    show_faults(range(5 if is_quick else 100))
    show_costs(SIZES[:2] if is_quick else SIZES)
    show_simulator(20 if is_quick else 200)


def settled_cluster(size: int, seed: int) -> SimulatedCluster:
    """Nodes at rest in one view, the most senior first."""
    cluster = SimulatedCluster(size, seed=seed)
    rng = Random(seed)
    for index, node in enumerate(cluster.nodes):
        cluster.after(rng.uniform(0, 0.5), cluster.start, node, index)
    cluster.run(6.0 + rng.random())
    assert cluster.convergence_problem() is None, cluster.convergence_problem()
    return cluster


def time_to_converge(cluster: SimulatedCluster) -> float:
    """From now until every node is in the view it should have."""
    begin_s = cluster.now_s
    while cluster.convergence_problem() is not None:
        assert cluster.now_s < begin_s + 30, cluster.convergence_problem()
        cluster.run(cluster.now_s + 0.01)
    return cluster.now_s - begin_s


def lose_power(cluster: SimulatedCluster) -> None:
    """The leader's host goes dark: nobody is told."""
    cluster.kill(cluster.nodes[0], silent=True)


def heal(cluster: SimulatedCluster) -> None:
    """A partition in the middle, which both sides have settled into, is over."""
    cluster.split(cluster.nodes[::2], cluster.nodes[1::2])
    time_to_converge(cluster)
    cluster.heal()


def stop_leader(cluster: SimulatedCluster) -> None:
    """The leader was stopped for 30 s and goes on."""
    cluster.pause(cluster.nodes[0])
    cluster.run(cluster.now_s + 30)
    cluster.resume(cluster.nodes[0])


FAULTS: dict[str, Callable[[SimulatedCluster], None]] = {
    "leader killed": lambda cluster: cluster.kill(cluster.nodes[0]),
    "leader leaves": lambda cluster: cluster.leave(cluster.nodes[0]),
    "leader loses power": lose_power,
    "one node is cut off": lambda w: void(w.split(w.nodes[3:4], set(w.nodes[:3]))),
    "partition in two": lambda w: void(w.split(w.nodes[::2], w.nodes[1::2])),
    "the partition heals": heal,
    "stopped leader goes on": stop_leader,
    "pair loses its link": lambda w: void(w.block(w.nodes[2], w.nodes[3])),
}


def void(_: object) -> None:
    """For its effect only."""


def show_faults(seeds: range) -> None:
    """How long until all nodes are in the right view again, profile LAN."""
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
    """What one node spends at rest."""
    print(
        "| nodes | machine at rest, CPU per s | a heartbeat | encode | decode | "
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
    """The next heartbeat that anybody sends."""
    found: list[tuple[Member, Heartbeat]] = []

    def listen(sender: Member, message: Message) -> None:
        if isinstance(message, Heartbeat):
            found.append((sender, message))

    cluster.on_message = listen
    while not found:
        cluster.run(cluster.now_s + 0.1)
    return found[0]


def microseconds(do: Callable[[], object], count: int = 2000) -> float:
    """The time of one call."""
    begin_s = time.perf_counter()
    for _ in range(count):
        do()
    return (time.perf_counter() - begin_s) / count * 1e6


def show_simulator(num_seeds: int) -> None:
    """Seeds per minute on one core, eight nodes, all faults."""
    begin_s = time.process_time()
    results = [simulate(seed, size=8) for seed in range(num_seeds)]
    took_s = time.process_time() - begin_s
    failed = [o.seed for o in results if o.failure]
    per_minute = 60 * num_seeds / took_s
    print(f"simulator, 8 nodes: {per_minute:,.0f} seeds per minute of one core")
    print(f"{num_seeds} seeds, failed: {failed or 'none'}")


if __name__ == "__main__":
    main()
