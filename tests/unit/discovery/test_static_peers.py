"""Named peers: parsing, lookup, and the order of their addresses."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Sequence

import pytest

from ringleader import settings
from ringleader.deadline import Deadline
from ringleader.discovery.static_peers import (
    MAX_PEERS,
    ResolvedPeer,
    StaticPeer,
    StaticPeers,
    interleave,
    parse,
)
from ringleader.errors import ConfigError


@pytest.mark.parametrize(
    ("text", "peers"),
    [
        ("", []),
        (" , ", []),
        ("desk:29600", [StaticPeer("desk", 29600)]),
        ("a:1, b.local:2 ,a:1", [StaticPeer("a", 1), StaticPeer("b.local", 2)]),
        ("[fd77::2]:65535", [StaticPeer("fd77::2", 65535)]),
        ("10.77.0.2:1024", [StaticPeer("10.77.0.2", 1024)]),
        ("[fe80::1%eth0]:1024", [StaticPeer("fe80::1%eth0", 1024)]),
    ],
)
def test_a_list_of_peers_is_read(text: str, peers: list[StaticPeer]) -> None:
    assert parse(text) == peers


def test_the_port_may_be_left_out_where_there_is_a_usual_one() -> None:
    peers = parse("desk,fd77::2,[fd77::3],lamp:9", default_port=7)
    assert [str(p) for p in peers] == ["desk:7", "[fd77::2]:7", "[fd77::3]:7", "lamp:9"]


@pytest.mark.parametrize(
    "text",
    [
        "desk",
        "desk:",
        ":29600",
        "desk:0",
        "desk:65536",
        "desk:99999999999999999999",
        "desk:-1",
        "desk:\u0663",
        "[]:1",
        "[desk]:1",
        "[fd77::2]1",
        "[fd77::2",
        "fd77::2",
        "a b:1",
        "desk:1:2",
        "good:1,bad",
        "x" * 254 + ":1",
        "http://desk:1",
    ],
)
def test_anything_else_is_refused_with_the_form(text: str) -> None:
    with pytest.raises(ConfigError, match=r"host:port, or \[ipv6\]:port"):
        parse(text)


def test_nobody_has_that_many_machines() -> None:
    with pytest.raises(ConfigError, match="limit is 256"):
        parse(",".join(f"host{i}:1" for i in range(MAX_PEERS + 1)))


def test_the_environment_names_peers() -> None:
    assert parse(settings.peers({"RINGLEADER_PEERS": "desk:1,lamp:2"})) == [
        StaticPeer("desk", 1),
        StaticPeer("lamp", 2),
    ]
    assert settings.peers({}) == ""


def test_families_take_turns_and_the_systems_choice_goes_first() -> None:
    mixed = ["fd77::1", "fd77::2", "fd77::3", "10.0.0.1", "fd77::1", "10.0.0.2"]
    turns = ("fd77::1", "10.0.0.1", "fd77::2", "10.0.0.2", "fd77::3")
    assert interleave(mixed) == turns
    assert interleave(reversed(mixed))[:2] == ("10.0.0.2", "fd77::1")
    assert interleave([]) == ()
    assert len(interleave(f"10.0.0.{i}" for i in range(100))) == 8


def resolve(
    peers: StaticPeers, *, within_s: float = 60.0, times: int = 1
) -> list[ResolvedPeer]:
    async def run() -> list[ResolvedPeer]:
        answers = []
        for _ in range(times):
            answers = await peers.resolve(Deadline.after(within_s))
        return answers

    return asyncio.run(run())


def test_an_address_needs_no_name_server() -> None:
    def never(host: str, port: int) -> Sequence[str]:
        raise AssertionError(host)

    peers = StaticPeers(parse("10.77.0.2:1,[fd77::2]:2"), look_up=never)
    assert [answer.addresses for answer in resolve(peers)] == [
        ("10.77.0.2",),
        ("fd77::2",),
    ]


def test_a_name_of_this_host_is_found_by_the_system() -> None:
    (answer,) = resolve(StaticPeers(parse("localhost:1")))
    assert {"127.0.0.1", "::1"} & set(answer.addresses)


def test_a_name_that_nobody_knows_is_explained_and_harms_no_other() -> None:
    def look_up(host: str, port: int) -> Sequence[str]:
        if host == "nobody":
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return ["10.77.0.2", "fd77::2"]

    peers = StaticPeers(parse("nobody:1,desk:2"), look_up=look_up)
    nobody, desk = resolve(peers)
    assert nobody.addresses == ()
    assert nobody.trouble == "nobody: Name or service not known"
    assert desk == ResolvedPeer(StaticPeer("desk", 2), ("10.77.0.2", "fd77::2"))


def test_a_name_server_that_hangs_costs_its_deadline_and_one_thread() -> None:
    called, release = threading.Event(), threading.Event()
    calls = []

    def hang(host: str, port: int) -> Sequence[str]:
        calls.append(host)
        called.set()
        release.wait(120)
        return ["10.77.0.2"]

    peers = StaticPeers(parse("slow:1,10.77.0.3:2"), look_up=hang)
    start_s = time.monotonic()
    try:
        slow, other = resolve(peers, within_s=0.05, times=3)
        spent_s = time.monotonic() - start_s
        assert called.wait(60)
    finally:
        release.set()
    assert "no answer from the name server within 0.05 s" in slow.trouble
    assert other.addresses == ("10.77.0.3",)
    assert calls == ["slow"]
    assert 0.15 <= spent_s < 60


def test_an_answer_that_was_late_is_there_the_next_time() -> None:
    release = threading.Event()

    def slow(host: str, port: int) -> Sequence[str]:
        release.wait(120)
        return ["10.77.0.2"]

    async def run() -> list[ResolvedPeer]:
        peers = StaticPeers(parse("slow:1"), look_up=slow)
        await peers.resolve(Deadline.after(0.01))
        release.set()
        return await peers.resolve(Deadline.after(60))

    assert asyncio.run(run())[0].addresses == ("10.77.0.2",)
