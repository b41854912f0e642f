"""Links are measured as they are, and the ring order that follows is the faster one."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ringleader.simulation.lan import (
    VirtualHost,
    can_make_faults,
    can_make_lan,
    lan,
    long_cable,
)
from ringleader.simulation.lan.rate_limit import bytes_per_s, limit_rate

IS_POSSIBLE, REASON = can_make_lan()
pytestmark = pytest.mark.skipif(not IS_POSSIBLE, reason=f"no LAN here: {REASON}")

BENCHMARK = Path(__file__).parents[3] / "benchmarks" / "ring_order.py"
PAYLOAD = 1448 / 1514
"""Payload share of the bytes that TCP puts on the wire."""

MAX_TRIES = 20
"""Until one is as fast as the wire: the machine may be busy, and nothing else makes
these figures smaller."""
PROBE = """
import json, socket, sys, time
from ringleader.deadline import Deadline
from ringleader.topology.link_speed import measure_receiving, measure_sending
role, address = sys.argv[1:]
if role == "receive":
    with socket.create_server((address, 5005)) as server:
        server.settimeout(90)
        print("ready", flush=True)
        sock = server.accept()[0]
else:
    sock = socket.create_connection((address, 5005), 90)
measure = measure_receiving if role == "receive" else measure_sending
with sock:
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    start = time.monotonic()
    link = measure(sock, Deadline.after(60))
    seconds = time.monotonic() - start
print(json.dumps([link.latency_s, link.out_bytes_per_s, link.in_bytes_per_s, seconds]))
"""


def probe(
    a: VirtualHost, b: VirtualHost, *, address: str = ""
) -> tuple[list[float], list[float]]:
    """(latency, out, in, seconds it took) as both ends saw it; ``address`` is b's."""

    def start(host: VirtualHost, role: str) -> subprocess.Popen[str]:
        argv = [sys.executable, "-c", PROBE, role, address or b.address]
        return host.popen(argv, stdout=subprocess.PIPE, text=True)

    receiver = start(b, "receive")
    assert receiver.stdout is not None
    assert receiver.stdout.readline() == "ready\n"
    sender = start(a, "send")
    first, second = (
        json.loads(p.communicate(timeout=200)[0]) for p in (sender, receiver)
    )
    return first, second


@pytest.mark.parametrize(
    ("rate", "least", "most"),
    [("2mbit", 0.6, 1.3), ("100mbit", 0.6, 1.1), ("1gbit", 0.15, 1.1)],
)
def test_a_link_is_measured_as_fast_as_it_is_and_in_a_moment(
    rate: str, least: float, most: float
) -> None:
    """A machine that is busy may be slower than its wire; nothing is much faster.

    Of the 48 KiB that suffice at 2 Mbit/s the shaper lets a fifth pass at once.
    """
    wire = bytes_per_s(rate) * PAYLOAD
    with lan(hosts=2, rate=rate) as net:
        here: list[float] = []
        for _ in range(MAX_TRIES):
            here, there = probe(*net.hosts)
            assert here[1:3] == [there[2], there[1]], "both ends know the same figures"
            latency_s, out, into, took_s = here
            is_right = least * wire < min(out, into) <= max(out, into) < most * wire
            if is_right and latency_s < 0.02 and took_s < 2.0:
                return
    raise AssertionError(f"in {MAX_TRIES} tries never so fast: {here}")


@pytest.mark.skipif(not Path("/dev/net/tun").exists(), reason="no /dev/net/tun")
def test_a_long_link_is_not_taken_for_a_slow_one() -> None:
    """2 to 8 of 125 MB/s were found: a round trip is longer than a burst had to be."""
    out = into = 0.0
    with lan(hosts=2) as net:
        one, other = net.hosts
        with long_cable(one, other, round_trip_s=0.04) as addresses:
            for _ in range(MAX_TRIES // 4):
                found = probe(one, other, address=addresses[1])[0]
                latency_s, out, into, took_s = found
                assert latency_s >= 0.02
                if min(out, into) > 15e6:
                    assert max(out, into) < 250e6
                    assert took_s < 8.0, "the limit of a probe between agents"
                    return
    raise AssertionError(f"never so fast: {out}, {into}")


def test_both_directions_are_measured_apart() -> None:
    with lan(hosts=2, rate="1gbit") as net:
        limit_rate(
            net.hosts[1].name, "eth0", "20mbit", {}
        )  # what it sends, not what comes
        out = into = 0.0
        for _ in range(MAX_TRIES):
            _, out, into, _ = probe(*net.hosts)[0]
            if out > 15e6 and 1.5e6 < into < 3.5e6:
                return
    raise AssertionError(f"in {MAX_TRIES} tries never so fast: {out}, {into}")


@pytest.mark.slow
@pytest.mark.skipif(not can_make_faults()[0], reason=can_make_faults()[1])
def test_the_measured_order_beats_the_worst_one(tmp_path: Path) -> None:
    """One slow pair among four hosts; at least 1.5 times faster, usually nine."""
    answer = tmp_path / "result.json"
    argv = [sys.executable, str(BENCHMARK), "--mib", "4", "--rounds", "2"]
    result: dict[str, Any] = {}
    for _ in range(3):  # a busy machine can be slower than the slow pair
        subprocess.run([*argv, "--json", str(answer)], check=True, timeout=180)
        result = json.loads(answer.read_text())
        order = result["orders"]["measured"]
        hops = zip(order, [*order[1:], order[0]], strict=True)
        if {0, 1} not in [set(hop) for hop in hops] and result["ratio"] >= 1.5:
            return
    raise AssertionError(f"over the slow pair, or not faster: {result}")
