"""A virtual LAN carries bytes at its rate and leaves nothing behind."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from ringleader.errors import ConfigError
from ringleader.simulation.lan import VirtualHost, VirtualLan, can_make_lan, lan

IS_POSSIBLE, REASON = can_make_lan()
pytestmark = pytest.mark.skipif(not IS_POSSIBLE, reason=f"no LAN here: {REASON}")

DEADLINE_S = 120.0
MAX_TRIES = 30
PORT = 5000

# Streams begin when they are told to, after the clock was read: what came earlier would
# wait in buffers, and seem faster than the wire. stdout is the only channel out.
RECEIVER = """
import json, selectors, socket, sys, time
address, num_streams, deadline_s = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
family = socket.AF_INET6 if ":" in address else socket.AF_INET
server = socket.create_server((address, int(sys.argv[4])), family=family)
server.settimeout(deadline_s)
print("ready", flush=True)
streams = [server.accept()[0] for _ in range(num_streams)]
start, total = time.monotonic(), 0
selector = selectors.DefaultSelector()
for stream in streams:
    stream.sendall(b"!")
    selector.register(stream, selectors.EVENT_READ)
while selector.get_map():
    for key, _ in selector.select(deadline_s):
        data = key.fileobj.recv(1 << 20)
        total += len(data)
        if not data:
            selector.unregister(key.fileobj)
            key.fileobj.close()
print(json.dumps([total, time.monotonic() - start]))
"""

SENDER = """
import socket, sys
address, num_bytes, deadline_s, port = sys.argv[1:]
with socket.create_connection((address, int(port)), float(deadline_s)) as stream:
    stream.recv(1)
    stream.sendall(bytes(int(num_bytes)))
"""


def _python(host: VirtualHost, code: str, *args: object) -> subprocess.Popen[str]:
    argv = [sys.executable, "-c", code, *map(str, args)]
    return host.popen(argv, stdout=subprocess.PIPE, text=True)


def _carry(
    senders: list[VirtualHost],
    to: VirtualHost,
    num_bytes: int,
    *,
    address: str | None = None,
) -> tuple[int, float]:
    """Return the bytes that arrived on ``to`` and the seconds they took."""
    address = address or to.address
    receiver = _python(to, RECEIVER, address, len(senders), DEADLINE_S, PORT)
    assert receiver.stdout is not None
    assert receiver.stdout.readline() == "ready\n"
    sending = [
        _python(h, SENDER, address, num_bytes, DEADLINE_S, PORT) for h in senders
    ]
    total, seconds = json.loads(receiver.communicate(timeout=DEADLINE_S)[0])
    for process in sending:
        process.communicate(timeout=DEADLINE_S)
        assert process.returncode == 0
    return int(total), float(seconds)


def _best_rate(senders: list[VirtualHost], to: VirtualHost, least: float) -> float:
    """Return the best of several tries; the first that is above ``least`` will do.

    A busy machine holds up who sends or receives, and nothing makes them faster.
    """
    best, num_bytes = 0.0, 5_000_000
    for _ in range(MAX_TRIES):
        total, seconds = _carry(senders, to, num_bytes)
        assert total == num_bytes * len(senders)
        best = max(best, total / seconds)
        if best > least:
            break
    return best


def _is_there(net: VirtualLan) -> bool:
    names = [net.switch, *(host.name for host in net.hosts)]
    return any(Path("/run/netns", name).exists() for name in names)


def test_two_hosts_talk_at_about_the_rate_of_the_wire() -> None:
    with lan(hosts=2, rate="200mbit") as net:
        total, _ = _carry([net.hosts[0]], net.hosts[1], 10_000_000)
        sent, received = net.hosts[0].bytes_sent(), net.hosts[1].bytes_received()
        rate = _best_rate([net.hosts[0]], net.hosts[1], least=20e6)
    assert total == 10_000_000
    # 200 Mbit/s is 25 MB/s, of which 23.9 are payload; the burst makes it a bit more.
    assert 20e6 < rate < 27e6
    assert total < sent < 1.1 * total
    assert total < received < 1.1 * total


def test_what_two_hosts_send_to_a_third_shares_its_card() -> None:
    with lan(hosts=3, rate="200mbit") as net:
        rate = _best_rate(net.hosts[1:], net.hosts[0], least=12e6)
    # Streams that meet lose packets at times; above all they get one wire, not two.
    assert 12e6 < rate < 26e6


def test_without_a_rate_nothing_is_slowed_down() -> None:
    with lan(hosts=2) as net:
        assert _best_rate([net.hosts[0]], net.hosts[1], least=40e6) > 40e6


def test_ipv6_works_too() -> None:
    with lan(hosts=2) as net:
        there = net.hosts[1]
        total, _ = _carry([net.hosts[0]], there, 100_000, address=there.address6)
    assert total == 100_000


def test_a_cut_host_is_silent_until_it_is_mended() -> None:
    with lan(hosts=2) as net:
        net.cut(1)
        receiver = _python(net.hosts[1], RECEIVER, net.hosts[1].address, 1, 20, PORT)
        assert receiver.stdout is not None
        assert receiver.stdout.readline() == "ready\n"
        argv = [
            sys.executable,
            "-c",
            SENDER,
            net.hosts[1].address,
            "10",
            "0.3",
            str(PORT),
        ]
        vain = net.hosts[0].popen(argv, stderr=subprocess.PIPE, text=True)
        assert "TimeoutError" in vain.communicate(timeout=DEADLINE_S)[1]
        net.mend(1)
        sender = _python(net.hosts[0], SENDER, net.hosts[1].address, 10, 20, PORT)
        assert json.loads(receiver.communicate(timeout=DEADLINE_S)[0])[0] == 10
        sender.communicate(timeout=DEADLINE_S)


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_nothing_is_left_after_an_exception(error: type[BaseException]) -> None:
    with pytest.raises(error), lan(hosts=2) as net:  # noqa: PT012
        child = net.hosts[0].popen(["sleep", "100"])
        raise error
    assert not _is_there(net)
    assert child.returncode == -9


def test_nothing_is_left_when_the_lan_cannot_be_finished() -> None:
    ours = f"ringleader-{os.getpid()}-*"
    before = set(Path("/run/netns").glob(ours))
    with pytest.raises(ConfigError, match="fast"), lan(hosts=2, rate="fast"):
        pass
    assert set(Path("/run/netns").glob(ours)) <= before


def test_what_a_dead_process_left_is_removed_by_the_next_lan() -> None:
    gone = subprocess.Popen(["true"])
    gone.wait()
    stale = f"ringleader-{gone.pid}-abc123-host0"
    subprocess.run(["ip", "netns", "add", stale], check=True)
    with lan(hosts=1):
        assert not Path("/run/netns", stale).exists()


def test_two_lans_live_side_by_side() -> None:
    with lan(hosts=2) as one, lan(hosts=2) as other:
        assert one.switch != other.switch
        _carry([one.hosts[0]], one.hosts[1], 1000)
        _carry([other.hosts[0]], other.hosts[1], 1000)


def test_a_lan_needs_a_sensible_number_of_hosts() -> None:
    with pytest.raises(ConfigError, match="got 0"), lan(hosts=0):
        pass
