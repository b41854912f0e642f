"""Groups between real hosts: network namespaces with their own addresses and rates."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ringleader.testing.lans import Lan, can_make_lan, lan
from ringleader.testing.network import Network
from ringleader.testing.simulator import predict

WORKER = Path(__file__).with_name("lan_worker.py")
POSSIBLE, REASON = can_make_lan()
RATE, RATE_BYTES = "200mbit", 25e6
PAYLOAD = 1448 / 1514
"""What tbf counts of a full frame: TCP payload against Ethernet frame without FCS."""

pytestmark = [
    pytest.mark.skipif(not POSSIBLE, reason=REASON),
    pytest.mark.timeout(120),
]


def start(net: Lan, ranks_per_host: int, tasks: list[dict[str, Any]]) -> list[Any]:
    """Start the workers of one group, spread over the hosts."""
    places = [host for host in net.hosts for _ in range(ranks_per_host)]
    peers = [f"{host.address}:{5100 + i}" for i, host in enumerate(places)]
    return [
        host.popen(
            [
                sys.executable,
                str(WORKER),
                json.dumps({"rank": rank, "peers": peers, "tasks": tasks}),
            ],
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank, host in enumerate(places)
    ]


def reports(workers: list[Any]) -> list[list[dict[str, Any]]]:
    """What every rank printed, one list of answers each."""
    outputs = [w.communicate(timeout=90)[0] for w in workers]
    assert all(w.returncode == 0 for w in workers)
    return [[json.loads(line) for line in text.splitlines()] for text in outputs]


def test_the_simulator_predicts_ring_tree_and_star_within_a_fifth() -> None:
    """With four hosts streams that meet share unevenly; see docs/algorithms.md."""
    size, num_bytes = 3, 4 << 20
    names = ["ring", "tree", "star"]
    tasks = [
        {"do": "time", "algorithm": n, "bytes": num_bytes, "rounds": 6} for n in names
    ]
    with lan(hosts=size, rate=RATE) as net:
        answers = reports(start(net, 1, tasks))
    network = Network.uniform(size, latency_s=50e-6, bytes_per_s=RATE_BYTES * PAYLOAD)
    for i, name in enumerate(names):
        assert all(rank[i]["right"] for rank in answers)
        measured_s = max(rank[i]["seconds"] for rank in answers)
        predicted_s = predict("all_reduce", name, num_bytes, network).time_s
        ratio = measured_s / predicted_s
        assert 0.8 < ratio < 1.2, f"{name}: {measured_s:.3f} s, {predicted_s:.3f} s"


def test_namespaces_count_as_hosts_and_ranks_of_one_share_memory() -> None:
    """Two hosts with two ranks each: memory inside, TCP across, one hierarchy."""
    tasks: list[dict[str, Any]] = [
        {"do": "describe"},
        {"do": "time", "algorithm": "hierarchy", "bytes": 1 << 20, "rounds": 3},
        {"do": "time", "algorithm": "ring", "bytes": 1 << 20, "rounds": 3},
        {"do": "time", "bytes": 1 << 20, "rounds": 3},
    ]
    with lan(hosts=2, rate=RATE) as net:
        answers = reports(start(net, 2, tasks))
    for rank, (links, *timed) in enumerate(answers):
        partner = rank ^ 1
        kinds = {int(p): kind for p, kind in links["links"].items()}
        assert kinds.pop(partner) == "shm"
        assert set(kinds.values()) == {"tcp"}
        assert links["hosts"] == [0, 0, 2, 2]
        assert all(t["right"] for t in timed)
    assert len({rank[0]["choice"] for rank in answers}) == 1, "all ranks choose alike"


def test_a_hierarchy_sends_every_byte_out_of_a_host_once() -> None:
    num_bytes, rounds = 2 << 20, 2
    task = {
        "do": "time",
        "algorithm": "hierarchy",
        "bytes": num_bytes,
        "rounds": rounds,
    }
    with lan(hosts=2) as net:
        answers = reports(start(net, 2, [task]))
    # A ring of two hosts sends S from each per all_reduce; the frames of TCP add a few
    # per cent, acknowledgements and barriers a little more.
    for (answer,) in answers:
        assert 1.0 < answer["sent"] / (rounds * num_bytes) < 1.1


def test_a_pulled_cable_is_named_by_everybody_in_time() -> None:
    """No reset, no goodbye: only silence. Every survivor blames the silent rank."""
    timeout_s, victim = 2.0, 1
    with lan(hosts=3) as net:
        workers = start(net, 1, [{"do": "fault", "timeout_s": timeout_s}])
        for worker in workers:
            assert json.loads(worker.stdout.readline()) == {"ready": True}
        net.cut(victim)
        survivors = [w for r, w in enumerate(workers) if r != victim]
        answers = [json.loads(w.stdout.readline()) for w in survivors]
        for worker in workers:
            worker.stdout.close()
    for answer in answers:
        assert answer["error"] == "DeadlineExceeded"
        assert answer["peer"] == victim, answer["text"]
        assert answer["seconds"] < timeout_s + 1
