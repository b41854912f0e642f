"""Links are measured as they are, and the ring order that follows is the faster one."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from ringleader.simulation.lan import VirtualHost, can_make_faults, can_make_lan, lan
from ringleader.simulation.lan.rate_limit import bytes_per_s, limit_rate

IS_POSSIBLE, REASON = can_make_lan()
pytestmark = pytest.mark.skipif(not IS_POSSIBLE, reason=f"no LAN here: {REASON}")

BENCHMARK = Path(__file__).parents[3] / "benchmarks" / "ring_order.py"
PAYLOAD = 1448 / 1514
"""Payload share of the bytes that TCP puts on the wire."""

PROBE = """
import json, socket, sys, time
from ringleader.deadline import Deadline
from ringleader.topology.link_speed import measure_receiving, measure_sending
role, address = sys.argv[1:]
if role == "receive":
    with socket.create_server((address, 5005)) as server:
        server.settimeout(20)
        print("ready", flush=True)
        sock = server.accept()[0]
else:
    sock = socket.create_connection((address, 5005), 20)
measure = measure_receiving if role == "receive" else measure_sending
with sock:
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    start = time.monotonic()
    link = measure(sock, Deadline.after(5))
    seconds = time.monotonic() - start
print(json.dumps([link.latency_s, link.out_bytes_per_s, link.in_bytes_per_s, seconds]))
"""


def probe(a: VirtualHost, b: VirtualHost) -> tuple[list[float], list[float]]:
    """(latency, out, in, seconds it took) as both ends saw it."""

    def start(host: VirtualHost, role: str) -> subprocess.Popen[str]:
        argv = [sys.executable, "-c", PROBE, role, b.address]
        return host.popen(argv, stdout=subprocess.PIPE, text=True)

    receiver = start(b, "receive")
    assert receiver.stdout is not None
    assert receiver.stdout.readline() == "ready\n"
    sender = start(a, "send")
    first, second = (
        json.loads(p.communicate(timeout=30)[0]) for p in (sender, receiver)
    )
    return first, second


@pytest.mark.parametrize(
    ("rate", "most"), [("2mbit", 1.3), ("100mbit", 1.1), ("1gbit", 1.1)]
)
def test_a_link_is_measured_as_fast_as_it_is_and_in_a_moment(
    rate: str, most: float
) -> None:
    """A machine that is busy may be slower than its wire; nothing is much faster.

    Of the 48 KiB that suffice at 2 Mbit/s the shaper lets a fifth pass at once.
    """
    wire = bytes_per_s(rate) * PAYLOAD
    with lan(hosts=2, rate=rate) as net:
        probes = [probe(*net.hosts) for _ in range(3)]
    for here, there in probes:
        assert here[1:3] == [there[2], there[1]], "both ends know the same figures"
        assert max(here[1:3]) < most * wire
    latencies, outs, intos, seconds = zip(*(here for here, _ in probes), strict=True)
    assert max(outs) > 0.6 * wire
    assert max(intos) > 0.6 * wire
    assert 0 < min(latencies) < 0.02
    assert min(seconds) < 2.0


def test_both_directions_are_measured_apart() -> None:
    with lan(hosts=2, rate="1gbit") as net:
        limit_rate(
            net.hosts[1].name, "eth0", "20mbit", {}
        )  # what it sends, not what comes
        probes = [probe(*net.hosts)[0] for _ in range(3)]
    assert max(out for _, out, _, _ in probes) > 40e6
    assert 1.5e6 < max(into for _, _, into, _ in probes) < 3.5e6


@pytest.mark.slow
@pytest.mark.skipif(not can_make_faults()[0], reason=can_make_faults()[1])
def test_the_measured_order_beats_the_worst_one(tmp_path: Path) -> None:
    """One slow pair among four hosts; at least 1.5 times faster, usually nine."""
    answer = tmp_path / "result.json"
    argv = [sys.executable, str(BENCHMARK), "--mib", "4", "--rounds", "2"]
    subprocess.run([*argv, "--json", str(answer)], check=True, timeout=100)
    result = json.loads(answer.read_text())
    order = result["orders"]["measured"]
    hops = {frozenset(hop) for hop in zip(order, [*order[1:], order[0]], strict=True)}
    assert frozenset((0, 1)) not in hops, f"{order} goes over the slow pair"
    assert result["probe_s"] < 5
    assert result["ratio"] >= 1.5, result
