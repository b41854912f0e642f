"""Groups between real hosts: network namespaces with their own addresses and rates."""

from __future__ import annotations

import json
from typing import Any

import pytest

from ringleader.simulation.collectives.network_model import NetworkModel
from ringleader.simulation.collectives.simulator import predict
from ringleader.simulation.lan import VirtualLan, can_make_lan, lan
from tests.kit.warm_python import WarmProcess, WarmPython

POSSIBLE, REASON = can_make_lan()
RATE, RATE_BYTES = "100mbit", 12.5e6
PAYLOAD = 1448 / 1514
"""What tbf counts of a full frame: TCP payload against Ethernet frame without FCS."""

TIMED = ("ring", "tree", "star")
TIMED_BYTES = 2 << 20
MAX_ROUNDS = 60
"""Until one is as fast as the network: the machine may be busy."""
FAULT_S = 5.0
VICTIM = 1

pytestmark = pytest.mark.skipif(not POSSIBLE, reason=REASON)


def start(
    python: WarmPython,
    net: VirtualLan,
    ranks_per_host: int,
    tasks: list[dict[str, Any]],
) -> list[WarmProcess]:
    """Start the workers of one group, spread over the hosts."""
    places = [host for host in net.hosts for _ in range(ranks_per_host)]
    peers = [f"{host.address}:{5100 + i}" for i, host in enumerate(places)]
    jobs = [
        json.dumps({"rank": rank, "peers": peers, "tasks": tasks})
        for rank in range(len(places))
    ]
    return [
        python.popen("-m", "tests.kit.lan_worker", job, namespace=host.name)
        for job, host in zip(jobs, places, strict=True)
    ]


Answers = list[list[dict[str, Any]]]
"""Replies by rank and task."""


def predicted_s(name: str) -> float:
    """What the simulator says of an all_reduce on three hosts."""
    network = NetworkModel.uniform(3, latency_s=50e-6, bytes_per_s=RATE_BYTES * PAYLOAD)
    return predict("all_reduce", name, TIMED_BYTES, network).time_s


@pytest.fixture(scope="module")
def of_three_hosts(warm_python: WarmPython) -> Answers:
    """One rank on each: three algorithms timed; then the cable of one is pulled."""
    tasks: list[dict[str, Any]] = [
        {
            "do": "time",
            "algorithm": name,
            "bytes": TIMED_BYTES,
            "rounds": MAX_ROUNDS,
            "enough_s": 1.1 * predicted_s(name),
        }
        for name in TIMED
    ]
    tasks.append({"do": "fault", "timeout_s": FAULT_S})
    with lan(hosts=3, rate=RATE) as net:
        workers = start(warm_python, net, 1, tasks)
        answers = [read(worker, len(TIMED)) for worker in workers]
        for worker in workers:
            assert read(worker, 1) == [{"ready": True}]
        net.cut(VICTIM)
        for rank, worker in enumerate(workers):
            answers[rank] += read(worker, 1) if rank != VICTIM else []
        for worker in workers:
            worker.kill()
            worker.communicate()
    return answers


@pytest.fixture(scope="module")
def of_two_hosts(warm_python: WarmPython) -> Answers:
    """Two ranks on each: memory inside, TCP across, one hierarchy."""
    timed = {"do": "time", "bytes": 2 << 20, "rounds": 2}
    tasks: list[dict[str, Any]] = [
        {"do": "describe"},
        {**timed, "algorithm": "hierarchy"},
        {**timed, "algorithm": "hierarchy", "codec": "int8"},
        {**timed, "algorithm": "ring"},
        timed,
    ]
    with lan(hosts=2, rate=RATE) as net:
        workers = start(warm_python, net, 2, tasks)
        outputs = [worker.communicate(timeout=400)[0] for worker in workers]
    assert all(worker.returncode == 0 for worker in workers)
    return [[json.loads(line) for line in text.splitlines()] for text in outputs]


def read(worker: WarmProcess, count: int) -> list[dict[str, Any]]:
    """The next answers of a worker; an empty line when it has died."""
    return [json.loads(worker.stdout.readline()) for _ in range(count)]


@pytest.mark.slow
def test_the_simulator_predicts_ring_tree_and_star_within_a_fifth(
    of_three_hosts: Answers,
) -> None:
    """With four hosts streams that meet share unevenly; see docs/algorithms.md."""
    for i, name in enumerate(TIMED):
        assert all(rank[i]["right"] for rank in of_three_hosts)
        measured_s = max(rank[i]["seconds"] for rank in of_three_hosts)
        ratio = measured_s / predicted_s(name)
        assert 0.8 < ratio < 1.2, f"{name}: {measured_s:.3f} s, {ratio:.2f} times that"


def test_a_pulled_cable_is_named_by_everybody_in_time(of_three_hosts: Answers) -> None:
    """No reset, no goodbye: only silence. Every survivor blames the silent rank."""
    for rank, answers in enumerate(of_three_hosts):
        if rank == VICTIM:
            continue
        told = answers[-1]
        assert told["error"] == "DeadlineExceeded"
        assert told["peer"] == VICTIM, told["text"]
        assert told["seconds"] < FAULT_S + 30


@pytest.mark.slow
def test_namespaces_count_as_hosts_and_ranks_of_one_share_memory(
    of_two_hosts: Answers,
) -> None:
    """FT-8: a group of several hosts, at the addresses that they have."""
    for rank, (links, *timed) in enumerate(of_two_hosts):
        partner = rank ^ 1
        kinds = {int(p): kind for p, kind in links["links"].items()}
        assert kinds.pop(partner) == "shm"
        assert set(kinds.values()) == {"tcp"}
        assert links["hosts"] == [0, 0, 2, 2]
        assert all(t["right"] for t in timed)
    assert len({rank[0]["choice"] for rank in of_two_hosts}) == 1, "all choose alike"


ANNOUNCED = """
import sys
from types import SimpleNamespace
from ringleader.groups.store_rendezvous import own_address
print(own_address(SimpleNamespace(host=sys.argv[1], port=29500)))
"""


def test_a_rank_announces_the_address_at_which_others_reach_it(
    warm_python: WarmPython,
) -> None:
    """FT-8: not that of loopback, if the store is on another host."""
    with lan(hosts=2) as net:
        ranks = [
            warm_python.popen("-c", ANNOUNCED, store.address, namespace=host.name)
            for host, store in (net.hosts, net.hosts[::-1])
        ]
        said = [rank.communicate(timeout=120)[0].strip() for rank in ranks]
    assert said == [host.address for host in net.hosts]


@pytest.mark.slow
def test_a_hierarchy_sends_every_byte_out_of_a_host_once(of_two_hosts: Answers) -> None:
    # A ring of two hosts sends S from each per all_reduce; the frames of TCP add a few
    # per cent, acknowledgements and barriers a little more.
    for _, hierarchy, coded, *_ in of_two_hosts:
        assert 1.0 < hierarchy["sent"] / (2 * (2 << 20)) < 1.1
        assert 1.0 < coded["sent"] / (2 * (2 << 20) / 4) < 1.1, "as int8, a quarter"
