"""Nodes on a LAN find each other, quickly and by themselves, and strangers change that
in no way."""

from __future__ import annotations

import json
import os
import secrets
import select
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest

from ringleader.simulation.lan import (
    VirtualHost,
    VirtualLan,
    can_make_faults,
    can_make_lan,
    lan,
)

IS_POSSIBLE, REASON = can_make_lan()
pytestmark = pytest.mark.skipif(not IS_POSSIBLE, reason=f"no LAN here: {REASON}")

WORKER = "tests.kit.discovery_worker"
DEADLINE_S = 120.0
ANNOUNCED_S = 3.0
"""After a start no node announces itself any more, without being asked."""
MAX_PROBES = 20
"""Each listens as long as the rules of mDNS allow; a busy machine takes longer."""
NEVER_S = 3600.0
"""Between the periodic questions: those at the start alone must find everybody."""

PORT = 29600
ROUNDS = 5


class Node:
    """A worker on a host."""

    def __init__(self, host: VirtualHost) -> None:
        pipe = subprocess.PIPE
        argv = [sys.executable, "-m", WORKER]
        self.process = host.popen(argv, stdin=pipe, stdout=pipe)
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.stdin, self.stdout = self.process.stdin, self.process.stdout
        self._rest = b""
        self._events: list[dict[str, Any]] = []

    def tell(self, do: str, **order: object) -> None:
        self.stdin.write(json.dumps({"do": do, **order}).encode() + b"\n")
        self.stdin.flush()

    def ask(self, do: str, answer: str, **order: object) -> dict[str, Any]:
        self.tell(do, **order)
        return self.event(answer)

    def probe(
        self, is_right: Callable[[dict[str, Any]], bool], **order: object
    ) -> dict[str, Any]:
        """Probe until it is right; return what was found last."""
        found: dict[str, Any] = {}
        for _ in range(MAX_PROBES):
            found = self.ask("probe", "probed", **order)
            if is_right(found):
                break
        return found

    def start(self, key: str, **order: object) -> dict[str, Any]:
        order = {"query_every_s": NEVER_S, **order}
        return self.ask("start", "updated", key=key, port=PORT, **order)

    def labels(self) -> set[str]:
        """Return the nodes that it currently sees."""
        return set(self.ask("list", "listed")["labels"])

    def event(self, name: str) -> dict[str, Any]:
        """The next event of this name; those before it are kept for later."""
        until_s = time.monotonic() + DEADLINE_S
        while True:
            for number, event in enumerate(self._events):
                if event["event"] == name:
                    return self._events.pop(number)
            left_s = until_s - time.monotonic()
            fd = self.stdout.fileno()
            is_there = select.select([fd], [], [], max(0.0, left_s))[0]
            text = f"no event {name!r} within {DEADLINE_S:g} s"
            assert is_there, f"{text}; there are {self._events}"
            data = os.read(fd, 65536)
            assert data, f"the worker ended before {name!r}"
            *lines, self._rest = (self._rest + data).split(b"\n")
            self._events += map(json.loads, lines)

    def close(self) -> None:
        self.process.kill()
        self.process.wait(timeout=DEADLINE_S)
        self.stdin.close()
        self.stdout.close()


@contextmanager
def nodes(*hosts: VirtualHost) -> Iterator[list[Node]]:
    """A worker on each host, ready; killed at the end, without a goodbye."""
    with ExitStack() as stack:
        started = [Node(host) for host in hosts]
        for node in started:
            stack.callback(node.close)
        for node in started:
            node.event("ready")
        yield started


def wait_for(is_so: Callable[[], bool], within_s: float = 60.0) -> float:
    """Seconds until it is so; fails after ``within_s``."""
    start_s = time.monotonic()
    while not is_so():
        assert time.monotonic() - start_s < within_s, f"not within {within_s:g} s"
        time.sleep(0.05)
    return time.monotonic() - start_s


def ip(host: VirtualHost, *words: str) -> None:
    subprocess.run(["ip", "-n", host.name, *words], check=True, timeout=DEADLINE_S)


def groups(host: VirtualHost, device: str) -> str:
    """The multicast groups that somebody on the host has joined there."""
    argv = ["ip", "-n", host.name, "maddress", "show", "dev", device]
    return subprocess.check_output(argv, text=True, timeout=DEADLINE_S)


def run_python(host: VirtualHost, code: str, *args: object) -> str:
    argv = host.command([sys.executable, "-c", code, *map(str, args)])
    return subprocess.run(
        argv, capture_output=True, text=True, check=True, timeout=2 * DEADLINE_S
    ).stdout


def new_key() -> str:
    return secrets.token_hex(32)


@pytest.fixture(scope="module")
def net() -> Iterator[VirtualLan]:
    """Three hosts; tests that change a host's network make their own."""
    with lan(hosts=3) as made:
        yield made


def test_three_hosts_find_each_other_at_once_and_say_goodbye(net: VirtualLan) -> None:
    # Whoever is silent is forgotten by the first periodic question, 48 s after a start
    # or later: before that only a goodbye takes a node off the list.
    quick = {"lifetime_s": 20.0, "query_every_s": 60.0}
    gone_after_s = []
    with nodes(*net.hosts) as three:
        for _ in range(ROUNDS):
            key = new_key()
            starts = [node.start(key, **quick) for node in three]
            sights = [[node.event("saw") for _ in range(2)] for node in three]
            ours = [start["labels"][0] for start in starts]
            for own, seen in zip(ours, sights, strict=True):
                assert {s["label"] for s in seen} == set(ours) - {own}
            assert sights[0][0]["addresses"][0].startswith("10.77.0.")
            assert sights[0][0]["port"] == PORT
            three[0].ask("stop", "stopped")
            is_gone = lambda: ours[0] not in three[1].labels()  # noqa: B023, E731
            gone_after_s.append(wait_for(is_gone, 400.0))
            for node in three[1:]:
                node.tell("stop")
            for node in three[1:]:
                node.event("stopped")
    assert sorted(gone_after_s)[ROUNDS // 2] < 20.0, gone_after_s


def test_two_secrets_on_one_lan_do_not_see_each_other(net: VirtualLan) -> None:
    mine, theirs = new_key(), new_key()
    with nodes(*net.hosts) as (one, other, two):
        one.start(mine)
        other.start(theirs)
        two.start(mine)
        assert two.event("saw")["addresses"] == ["10.77.0.1", "fd77::1"]
        assert one.event("saw")["addresses"] == ["10.77.0.3", "fd77::3"]
        wait_for(lambda: other.ask("list", "listed")["num_foreign"] == 2)
        assert other.labels() == set()
        assert len(one.labels()) == 1
        expected = {
            "members": [["10.77.0.1", "fd77::1"], ["10.77.0.3", "fd77::3"]],
            "strangers": [["10.77.0.2", "fd77::2"]],  # its own node
            "loops_back": True,
            "heard": ["10.77.0.1", "10.77.0.3"],
            "answered": ["10.77.0.1", "10.77.0.3"],
        }
        probe = other.probe(lambda p: expected.items() <= p.items(), key=mine)
    assert {name: probe[name] for name in expected} == expected


@pytest.mark.slow
def test_after_a_crash_there_is_a_new_label_and_the_old_one_expires(
    net: VirtualLan,
) -> None:
    key = new_key()
    # Half a lifetime passes before a node is asked again, and an answer may take 1.2 s,
    # on a busy machine several more.
    life_s = 16.0
    quick = {"lifetime_s": life_s, "query_every_s": 0.5}
    here, crashing, there = net.hosts
    with nodes(here, there, crashing, crashing) as (watcher, steady, victim, next_life):
        watcher.start(key, **quick)
        third = steady.start(key, **quick)["labels"][0]
        assert watcher.event("saw")["label"] == third
        first = victim.start(key)["labels"][0]
        assert watcher.event("saw")["label"] == first
        crashed_s = time.monotonic()
        victim.process.kill()
        victim.process.wait(timeout=DEADLINE_S)
        second = next_life.start(key)["labels"][0]
        assert watcher.event("saw")["label"] == second
        assert watcher.labels() == {first, second, third}
        wait_for(lambda: first not in watcher.labels())
        assert time.monotonic() - crashed_s > 0.4 * life_s
        assert watcher.labels() == {second, third}, "questions keep them alive"


# What a stranger can send: records under a key of its own, and goodbyes in the name of
# a member, whose label everybody hears.
STRANGER = """
import secrets, socket, sys, time
from zeroconf import DNSOutgoing, DNSPointer, DNSService, DNSText
from ringleader.discovery.record import SERVICE, encode, new_label, sign
here, num_forged, *labels = sys.argv[1:]
out = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
out.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, socket.inet_aton(here))
def packets(label, ttl_s, key):
    name = f"{label}.{SERVICE}"
    text = encode(sign(label, 29600, ["10.77.0.1"], key))
    packet = DNSOutgoing(0x8400)
    for record in (
        DNSPointer(SERVICE, 12, 0x8001, ttl_s, name),
        DNSService(name, 33, 0x8001, ttl_s, 0, 0, 29600, f"{label}.local."),
        DNSText(name, 16, 0x8001, ttl_s, text),
    ):
        packet.add_answer_at_time(record, 0)
    return packet.packets()
key = secrets.token_bytes(32)
for number in range(int(num_forged)):
    for packet in packets(new_label(secrets.token_bytes(10)), 4500, key):
        out.sendto(packet, ("224.0.0.251", 5353))
    if number % 20 == 0:
        time.sleep(0.005)
for label in labels:
    for ttl_s in (0, 4500):
        for packet in packets(label, ttl_s, key):
            out.sendto(packet, ("224.0.0.251", 5353))
"""


@pytest.mark.slow
def test_forged_records_and_goodbyes_change_nothing(net: VirtualLan) -> None:
    key = new_key()
    with nodes(*net.hosts) as (one, two, late):
        # One question each: what is believed afterwards is not owed to the next one.
        first = one.start(key, first_queries_s=[0])["labels"][0]
        second = two.start(key, first_queries_s=[0])["labels"][0]
        one.event("saw")
        two.event("saw")
        sent = net.hosts[0].bytes_sent()
        run_python(net.hosts[2], STRANGER, "10.77.0.3", 1000, first, second)
        time.sleep(3.1)  # the grace of a goodbye that nobody took back
        wait_for(lambda: one.labels() == {second})
        wait_for(lambda: two.labels() == {first})
        wait_for(lambda: num_refused(one) > 100)  # a busy host drops some of 1000
        assert one.ask("list", "listed")["num_foreign"] <= 64
        assert net.hosts[0].bytes_sent() - sent < 20_000, (
            "we answer no flood by another"
        )
        late.start(key)
        seen = [late.event("saw") for _ in range(2)]
        assert {s["label"] for s in seen} == {first, second}
        one.event("saw")


def num_refused(node: Node) -> int:
    return int(node.ask("list", "listed")["refused"].get("FOREIGN", 0))


def test_port_5353_that_is_not_shared_is_named_and_later_used(net: VirtualLan) -> None:
    hold = (
        "import socket, sys; s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM);"
        "s.bind(('', 5353)); print('held', flush=True); sys.stdin.read()"
    )
    pipe = subprocess.PIPE
    argv = [sys.executable, "-c", hold]
    key = new_key()
    with nodes(*net.hosts[:2]) as (one, two):
        with net.hosts[0].popen(argv, stdin=pipe, stdout=pipe, text=True) as holder:
            assert holder.stdout is not None
            assert holder.stdin is not None
            assert holder.stdout.readline() == "held\n"
            trouble = one.start(key)
            probe = one.ask("probe", "probed", key=key)
            with pytest.raises(subprocess.CalledProcessError) as caught:
                run_python(net.hosts[0], FIND.format(1))
            holder.stdin.close()
        assert trouble["trouble"] == probe["trouble"] == "port taken"
        assert "5353" in trouble["text"]
        assert "--peers" in trouble["text"]
        assert "PeerUnreachable: pairing: no discovery" in caught.value.stderr
        two.start(key)
        assert one.ask("update", "updated")["trouble"] is None
        assert one.event("saw")["addresses"] == ["10.77.0.2", "fd77::2"]


def test_two_nodes_on_one_host_find_each_other_and_a_third(net: VirtualLan) -> None:
    key, here = new_key(), net.hosts[0]
    with nodes(here, here, net.hosts[1]) as (one, two, far):
        for node in (far, one, two):
            node.start(key)
        for node in (one, two, far):
            places = {node.event("saw")["addresses"][0] for _ in range(2)}
            assert places <= {"10.77.0.1", "10.77.0.2"}
            assert len(node.labels()) == 2


def test_virtual_interfaces_are_not_announced() -> None:
    key = new_key()
    with lan(hosts=2) as net:
        here = net.hosts[0]
        here.add_interface("docker0", "172.17.0.1/16")
        here.add_interface("tun0", "10.9.0.1/24")
        with nodes(*net.hosts) as (one, two):
            two.start(key)
            started = one.start(key)
            assert started["chosen"] == ["eth0"]
            assert "virtual" in started["refused"]["docker0"]
            assert "VPN" in started["refused"]["tun0"]
            assert two.event("saw")["addresses"] == ["10.77.0.1", "fd77::1"]
            one.event("saw")
            assert "224.0.0.251" in groups(here, "eth0")
            assert "224.0.0.251" not in groups(here, "docker0")


def test_hosts_without_ipv4_find_each_other_and_a_host_with_both() -> None:
    key = new_key()
    with lan(hosts=3) as net:
        for host in net.hosts[:2]:
            host.only_ipv6()
        with nodes(*net.hosts) as three:
            for node in three:
                node.start(key)
            for number, node in enumerate(three):
                seen = [node.event("saw") for _ in range(2)]
                if number < 2:
                    assert all(len(s["addresses"]) == 1 for s in seen)
                    assert {s["addresses"][0][:6] for s in seen} == {"fd77::"}
            probe = three[0].probe(
                lambda p: len(p["members"]) == 3 and "fd77::2" in p["answered"], key=key
            )
            assert len(probe["members"]) == 3
            assert "fd77::2" in probe["answered"]


def test_on_a_new_network_a_node_has_a_new_label() -> None:
    key = new_key()
    with lan(hosts=2) as net, nodes(*net.hosts) as (moving, other):
        first = moving.start(key)["labels"][0]
        other.start(key)
        assert other.event("saw")["label"] == first
        assert moving.ask("update", "updated")["labels"] == [first], "nothing changed"
        ip(net.hosts[0], "addr", "del", "10.77.0.1/16", "dev", "eth0")
        ip(net.hosts[0], "addr", "add", "10.77.9.9/16", "dev", "eth0")
        second, previous = moving.ask("update", "updated")["labels"]
        assert (second, previous) == (second, first)
        seen = other.event("saw")
        assert seen["label"] == second
        assert "10.77.9.9" in seen["addresses"]
        ip(net.hosts[0], "link", "set", "eth0", "down")
        assert moving.ask("update", "updated")["trouble"] == "no interface"
        assert moving.labels() == set(), "nobody is on no network"
        ip(net.hosts[0], "link", "set", "eth0", "up")
        ip(net.hosts[0], "addr", "replace", "fd77::1/64", "dev", "eth0", "nodad")
        assert moving.ask("update", "updated")["trouble"] is None
        moving.event("saw")


@pytest.mark.skipif(not can_make_faults()[0], reason=can_make_faults()[1])
@pytest.mark.parametrize("who", ["nobody is in sight", "somebody was lost"])
def test_multicast_that_is_mended_is_noticed_by_those_who_seek(who: str) -> None:
    """Nothing changes on a machine when a switch begins to pass multicast again."""
    key, silent = new_key(), {"first_queries_s": [0.0], "query_every_s": 3600.0}
    often = silent | {"query_seeking_s": 0.2}
    with lan(hosts=3) as net, nodes(*net.hosts) as (apart, one, other):
        net.no_multicast(0)
        is_alone = who == "nobody is in sight"
        hidden = apart.start(key, **(often if is_alone else silent))["labels"][0]
        first, second = (
            node.start(key, **(silent if is_alone else often))["labels"][0]
            for node in (one, other)
        )
        assert one.event("saw")["label"] == second
        assert other.event("saw")["label"] == first
        assert apart.labels() == set()
        time.sleep(ANNOUNCED_S)
        net.mend(0)
        if is_alone:
            found = {apart.event("saw")["label"], apart.event("saw")["label"]}
            assert found == {first, second}
        else:
            one.tell("seek")
            assert one.event("saw")["label"] == hidden


@pytest.mark.slow
def test_multicast_that_is_lost_is_told_from_a_peer_that_is_not_there() -> None:
    key = new_key()
    with lan(hosts=3) as net, nodes(*net.hosts[:2]) as (one, deaf):
        one.start(key)
        call = [net.hosts[0].address, net.hosts[2].address]  # nothing runs on the last
        port = net.hosts[1].cable().port
        argv = ["bridge", "-n", net.switch, "link", "set", "dev", port]
        subprocess.run([*argv, "mcast_flood", "off"], check=True, timeout=DEADLINE_S)
        probe = deaf.probe(lambda p: bool(p["answered"]), key=key, call=call)
        assert probe["heard"] == [], "multicast does not come in"
        assert probe["answered"] == ["10.77.0.1"], "it does go out"
        net.no_multicast(1)
        probe = deaf.probe(
            lambda p: p["members"] and p["answered_directly"] and p["loops_back"],
            key=key,
            call=call,
        )
        assert probe["heard"] == probe["answered"] == []
        assert probe["answered_directly"] == ["10.77.0.1"]
        assert probe["members"] == [["10.77.0.1", "fd77::1"]]
        assert probe["loops_back"]


WINDOW = """
import sys
from ringleader.discovery.pairing_announcement import announce_pairing
with announce_pairing(int(sys.argv[1])) as trouble:
    print(trouble, flush=True)
    sys.stdin.read()
"""
FIND = """
import json, time
from ringleader.discovery.pairing_announcement import find_pairing_hosts
start_s = time.monotonic()
found = find_pairing_hosts({0})
print(json.dumps([found, time.monotonic() - start_s]))
"""


def test_a_pairing_window_is_found_while_it_is_open(net: VirtualLan) -> None:
    argv = [sys.executable, "-c", WINDOW, "5000"]
    pipe = subprocess.PIPE
    with net.hosts[0].popen(argv, stdin=pipe, stdout=pipe, text=True) as window:
        assert window.stdout is not None
        assert window.stdin is not None
        assert window.stdout.readline() == "None\n"
        found, took_s = json.loads(run_python(net.hosts[1], FIND.format(DEADLINE_S)))
        window.stdin.close()
        assert window.wait(timeout=DEADLINE_S) == 0
    assert found == [["10.77.0.1", 5000], ["fd77::1", 5000]]
    assert took_s < DEADLINE_S / 2, "it does not wait for others for long"
    assert json.loads(run_python(net.hosts[1], FIND.format(0.5)))[0] == []
