"""Every fault of a virtual LAN takes effect and ends again."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest

import ringleader.testing
from ringleader.errors import ConfigError
from ringleader.simulation.lan import VirtualHost, VirtualLan, can_make_faults, lan
from ringleader.simulation.lan.rate_limit import bytes_per_s

IS_POSSIBLE, REASON = can_make_faults()
pytestmark = pytest.mark.skipif(not IS_POSSIBLE, reason=f"no faults here: {REASON}")

WAIT_S = 60.0
"""Limit for messages that must arrive, which takes milliseconds."""

VAIN_S = 0.2
"""How long to wait for messages that must not arrive."""

GROUP = "224.0.0.251"

# Does one job per line of stdin: send and hear datagrams, connect, transfer.
AGENT = """
import json, socket, struct, sys, threading, time

four = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
four.bind(("", 6000))
six = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
six.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
six.bind(("::", 6000))
own = socket.inet_aton(sys.argv[1])
join = socket.inet_aton("224.0.0.251") + own
four.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, join)
four.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, own)

def serve(server):
    def answer(stream):
        with stream:
            while data := stream.recv(1 << 16):
                stream.sendall(data)
    while True:
        stream = server.accept()[0]
        threading.Thread(target=answer, args=(stream,), daemon=True).start()

for port in (7000, 7001):
    server = socket.create_server(
        ("", port), family=socket.AF_INET6, dualstack_ipv6=True
    )
    threading.Thread(target=serve, args=(server,), daemon=True).start()

heard = []

def listen(sock):
    while True:
        heard.append(sock.recv(2000).decode())

for sock in (four, six):
    threading.Thread(target=listen, args=(sock,), daemon=True).start()

def send(address, text):
    sock = six if ":" in address else four
    sock.sendto(text.encode(), (address, 6000))

def hears(text, within_s):
    until = time.monotonic() + within_s
    while text not in heard and time.monotonic() < until:
        time.sleep(0.005)
    return text in heard

def echo(address, port, num_bytes, within_s):
    with socket.create_connection((address, port), within_s) as stream:
        stream.sendall(bytes(num_bytes))
        left = num_bytes
        while left:
            left -= len(stream.recv(left))

def do(name, *args):
    try:
        return {"send": send, "hears": hears, "echo": echo}[name](*args)
    except OSError as error:
        return type(error).__name__

for line in sys.stdin:
    print(json.dumps(do(*json.loads(line))), flush=True)
"""


class Agent:
    """A process on a host that exchanges messages with others on request."""

    def __init__(self, host: VirtualHost) -> None:
        self.host = host
        argv = [sys.executable, "-I", "-S", "-c", AGENT, host.address]
        self.process = host.popen(
            argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def do(self, *words: object) -> Any:  # noqa: ANN401 (whatever JSON can say)
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps(words) + "\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())

    def close(self) -> None:
        self.process.kill()
        self.process.communicate()


@contextmanager
def agents(net: VirtualLan) -> Iterator[list[Agent]]:
    with ExitStack() as stack:
        made = [Agent(host) for host in net.hosts]
        for each in made:
            stack.callback(each.close)
        for each in made:
            each.do("hears", "nothing", 0)  # it is up
        yield made


def reaches(a: Agent, b: Agent, text: str, *, address: str = "") -> bool:
    """Return whether a datagram gets from one host to the other."""
    a.do("send", address or b.host.address, text)
    return bool(b.do("hears", text, VAIN_S))


def surely_reaches(a: Agent, b: Agent, text: str, *, address: str = "") -> None:
    until_s = time.monotonic() + WAIT_S
    while not reaches(a, b, text, address=address):  # a datagram may be dropped
        assert time.monotonic() < until_s, f"{text!r} did not arrive"


def test_a_muted_host_hears_and_a_deaf_one_is_heard() -> None:
    with lan(hosts=2) as net, agents(net) as (a, b):
        surely_reaches(a, b, "hello")  # and they know each other's hardware address
        surely_reaches(b, a, "hello")
        net.mute(0)
        assert not reaches(a, b, "muted")
        surely_reaches(b, a, "but not deaf")
        net.mend(0)
        surely_reaches(a, b, "speaks again")
        net.deafen(0)
        surely_reaches(a, b, "not muted")
        assert not reaches(b, a, "but deaf")
        net.heal()
        surely_reaches(b, a, "hears again")


def test_islands_do_not_hear_each_other_until_the_lan_is_healed() -> None:
    with lan(hosts=3) as net, agents(net) as (a, b, c):
        net.partition([[0, 1], [2]])
        surely_reaches(a, b, "same island")
        surely_reaches(b, a, "same island")
        for n, (one, other) in enumerate([(a, c), (c, a), (b, c), (c, b)]):
            assert not reaches(one, other, f"between islands {n}")
        assert not reaches(c, a, "by multicast", address=GROUP)
        net.partition([[0], [1, 2]])
        surely_reaches(b, c, "other islands")
        assert not reaches(a, b, "left alone")
        net.heal()
        surely_reaches(a, c, "healed")
        with pytest.raises(ConfigError, match="each host"):
            net.partition([[0, 1]])


def test_a_blocked_port_answers_nobody_and_others_do() -> None:
    with lan(hosts=2) as net, agents(net) as (a, b):
        net.hosts[1].block_port(7000)
        for address in (b.host.address, b.host.address6):
            assert a.do("echo", address, 7000, 10, VAIN_S) == "TimeoutError"
            assert a.do("echo", address, 7001, 10, WAIT_S) is None
        net.heal()
        assert a.do("echo", b.host.address, 7000, 10, VAIN_S) == "TimeoutError"
        net.hosts[1].unblock_port(7000)
        assert a.do("echo", b.host.address, 7000, 10, WAIT_S) is None
        net.hosts[1].block_port(6000, "udp")
        assert not reaches(a, b, "blocked")


def test_multicast_can_be_missing_where_everything_else_works() -> None:
    with lan(hosts=2) as net, agents(net) as (a, b):
        surely_reaches(a, b, "multicast", address=GROUP)
        net.no_multicast(1)
        assert not reaches(a, b, "to it", address=GROUP)
        assert not reaches(b, a, "from it", address=GROUP)
        surely_reaches(a, b, "unicast")
        surely_reaches(a, b, "unicast 6", address=b.host.address6)
        net.mend(1)
        surely_reaches(a, b, "multicast again", address=GROUP)


def test_hosts_with_one_family_of_addresses() -> None:
    with lan(hosts=3) as net, agents(net) as (a, b, c):
        net.hosts[1].only_ipv4()
        net.hosts[2].only_ipv6()
        surely_reaches(a, b, "four")
        assert not reaches(a, b, "no six", address=b.host.address6)
        surely_reaches(a, c, "six", address=c.host.address6)
        assert not reaches(a, c, "no four")


LOOK = """
import json
from ringleader.topology.interfaces import list_interfaces
print(json.dumps({i.name: [i.kind, i.is_up, i.mtu] for i in list_interfaces()}))
"""


def look(host: VirtualHost) -> dict[str, list[Any]]:
    """Return the interfaces of a host as Ringleader sees them."""
    process = host.popen(
        [sys.executable, "-c", LOOK], stdout=subprocess.PIPE, text=True
    )
    return dict(json.loads(process.communicate(timeout=120)[0]))


def test_more_interfaces_are_what_their_names_say() -> None:
    with lan(hosts=3) as net, agents(net) as (a, b, c):
        net.hosts[0].add_interface("docker0", "172.17.0.1/16")
        net.hosts[0].add_interface("tun0", "10.8.0.2/24")
        for index in (0, 1):
            net.hosts[index].add_interface("eth1", f"10.88.0.{index + 1}/24")
        net.hosts[0].set_mtu(1400, "eth1")
        seen = look(net.hosts[0])
        assert seen["docker0"][:2] == ["virtual", True]
        assert seen["tun0"][:2] == ["vpn", True]
        assert seen["eth0"] == ["ethernet", True, 1500]
        assert seen["eth1"] == ["ethernet", True, 1400]
        surely_reaches(a, b, "second network", address="10.88.0.2")
        net.cut(0, "eth1")
        assert not reaches(a, b, "cut", address="10.88.0.2")
        surely_reaches(a, c, "eth0 is another cable")
        net.hosts[0].set_up("eth0", is_up=False)
        assert look(net.hosts[0])["eth0"][1] is False


def test_a_port_that_drops_large_packets_lets_small_ones_through() -> None:
    with lan(hosts=2) as net, agents(net) as (a, b):
        address = b.host.address
        assert a.do("echo", address, 7000, 100_000, WAIT_S) is None
        net.drop_large(1, over=1400)
        assert a.do("echo", address, 7000, 1000, WAIT_S) is None
        assert a.do("echo", address, 7000, 100_000, 3 * VAIN_S) == "TimeoutError"
        net.hosts[0].set_mtu(1400)
        assert a.do("echo", address, 7000, 100_000, WAIT_S) is None
        net.hosts[0].set_mtu(1500)
        net.mend(1)
        assert a.do("echo", address, 7000, 100_000, WAIT_S) is None


def timed(a: Agent, b: Agent, num_bytes: int, least: float) -> float:
    """Measure bytes per second there and back; the best try, as any may be delayed.

    The first that is above ``least`` will do.
    """
    script = f"""
import socket, time
best = 1e9
for _ in range(30):
    if {num_bytes} / best > {least}:
        break
    with socket.create_connection(({b.host.address!r}, 7000), 60) as stream:
        start = time.monotonic()
        stream.sendall(bytes({num_bytes}))
        left = {num_bytes}
        while left:
            left -= len(stream.recv(left))
        best = min(best, time.monotonic() - start)
print(best)
"""
    argv = [sys.executable, "-I", "-S", "-c", script]
    process = a.host.popen(argv, stdout=subprocess.PIPE, text=True)
    return num_bytes / float(process.communicate(timeout=300)[0])


def test_rates_change_for_a_host_or_for_a_pair() -> None:
    size = 500_000
    with lan(hosts=3, rate="500mbit") as net, agents(net) as (a, b, c):
        net.slow_pair(0, 1, "20mbit")
        assert 1.2e6 < timed(a, b, size, 1.2e6) < 2.9e6  # 2.5e6 on the wire
        assert 1.2e6 < timed(b, a, size, 1.2e6) < 2.9e6
        assert timed(a, c, size, 5e6) > 5e6
        net.slow_pair(0, 1, None)
        assert timed(a, b, size, 5e6) > 5e6
        net.set_rate(2, "20mbit")
        assert 1.2e6 < timed(a, c, size, 1.2e6) < 2.9e6
        net.set_rate(2, None)
        assert timed(a, c, size, 5e6) > 5e6


def test_the_kit_offers_the_lan_by_one_name() -> None:
    with ringleader.testing.lan(hosts=1) as net:
        assert isinstance(net, VirtualLan)


@pytest.mark.parametrize(
    ("rate", "speed"),
    [("1gbit", 125e6), ("100mbit", 12.5e6), ("2.5gbit", 312.5e6), ("10mbps", 1e7)],
)
def test_rates_are_read_in_the_units_of_tc(rate: str, speed: float) -> None:
    assert bytes_per_s(rate) == speed


@pytest.mark.parametrize("rate", ["fast", "", "0mbit", "-1mbit", "10 parsec", "1gbitt"])
def test_rates_that_are_none_are_refused(rate: str) -> None:
    with pytest.raises(ConfigError, match="invalid rate"):
        bytes_per_s(rate)


def test_a_mistaken_wish_is_named() -> None:
    wishes: Sequence[tuple[str, Any]] = [
        ("no host 7", lambda net: net.cut(7)),
        ("wlan0", lambda net: net.mute(0, "wlan0")),
        ("got host 1 twice", lambda net: net.slow_pair(1, 1, "1mbit")),
        ("over must be", lambda net: net.drop_large(0, over=9000)),
        ("unknown protocol", lambda net: net.hosts[0].block_port(1, "sctp")),
    ]
    with lan(hosts=2) as net:
        for text, wish in wishes:
            with pytest.raises(ConfigError, match=text):
                wish(net)
