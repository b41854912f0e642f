"""The door of an agent: who gets in, who does not, and that a crowd does no harm."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import secrets
import socket
import ssl
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest

from ringleader.errors import (
    InternalError,
    PeerError,
    PeerRefused,
    PeerUntrusted,
    ProtocolError,
)
from ringleader.identity.cluster_secret import ClusterSecret
from ringleader.identity.credentials import Credentials
from ringleader.identity.node_key import NodeKey
from ringleader.identity.secret_value import Secret
from ringleader.ids import Incarnation, NodeId
from ringleader.node.peering import acceptor as doors
from ringleader.node.peering.acceptor import Door
from ringleader.node.peering.connect import dial
from ringleader.node.peering.peer_connection import GREETING_S, Greeting, Guest
from ringleader.node.protocol import framing
from ringleader.node.protocol.framing import Hello

HERE = "127.0.0.1"
OURS = ClusterSecret(root=Secret(os.urandom(32)))
THEIRS = ClusterSecret(root=Secret(os.urandom(32)))


def greeting(
    cluster: ClusterSecret = OURS,
    *,
    claim: NodeId | None = None,
    protocol: int = framing.PROTOCOL,
) -> Greeting:
    """A node that may claim to be another one, or speak another protocol."""
    credentials = Credentials.issue(cluster, NodeKey.ephemeral())

    def hello(purpose: str, subject: str) -> Hello:
        return Hello(
            protocol=protocol,
            version="9.9",
            purpose=purpose,
            node=claim or credentials.node,
            incarnation=Incarnation(secrets.token_hex(8)),
            started_ms=1,
            name="node",
            port=4000,
            clock_s=0.0,
            subject=subject,
        )

    return Greeting(credentials, hello)


@dataclass
class House:
    """A door that is being served, and who came in."""

    door: Door
    port: int
    host: Greeting
    guests: list[Guest] = field(default_factory=list)

    async def call(self, caller: Greeting, expect: NodeId | None = None) -> Guest:
        guest = await dial(caller, [(HERE, self.port)], "control", expect=expect)
        guest.close()
        return guest

    async def settle(self) -> None:
        """Until everybody who is half-way has been judged."""
        for _ in range(400):
            if not self.door._half_open:
                return
            await asyncio.sleep(0.02)


@asynccontextmanager
async def house(host: Greeting, trouble: Exception | None) -> AsyncIterator[House]:
    sock = socket.create_server((HERE, 0))
    sock.setblocking(False)
    guests: list[Guest] = []

    async def on_guest(guest: Guest) -> None:
        guests.append(guest)
        if trouble is not None:
            raise trouble

    door = Door(host, sock, on_guest)
    task = asyncio.create_task(door.serve())
    try:
        yield House(door, sock.getsockname()[1], host, guests)
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        for guest in guests:
            guest.abort()
        await asyncio.sleep(0.05)
        sock.close()


def run(
    work: Callable[[House], Awaitable[None]],
    host: Greeting | None = None,
    trouble: Exception | None = None,
) -> None:
    """Do ``work`` at a door; ``trouble`` is what befalls who receives its guests."""

    async def main() -> None:
        async with house(host or greeting(), trouble) as made:
            await work(made)

    asyncio.run(asyncio.wait_for(main(), 60))


def test_a_member_comes_in_and_both_know_who_the_other_is() -> None:
    async def work(at: House) -> None:
        caller = greeting()
        guest = await at.call(caller, expect=at.host.credentials.node)
        await at.settle()
        assert guest.node == at.host.credentials.node
        assert [g.node for g in at.guests] == [caller.credentials.node]
        assert at.guests[0].address == (HERE, 4000), "where it can be called back"
        assert at.door.num_rejected == 0

    run(work)


@pytest.mark.parametrize(
    ("caller", "kind", "word"),
    [
        (greeting(THEIRS), PeerUntrusted, "other secret"),
        (greeting(claim=NodeId("b" * 52)), PeerRefused, "another node"),
        (greeting(protocol=framing.PROTOCOL + 1), PeerRefused, "upgrade"),
    ],
    ids=["other cluster", "claims another id", "other version"],
)
def test_who_is_not_one_of_us_is_told_no(
    caller: Greeting, kind: type[PeerError], word: str
) -> None:
    async def work(at: House) -> None:
        with pytest.raises(kind, match=word):
            await at.call(caller)
        await at.settle()
        assert at.guests == []
        assert at.door.num_rejected == 1

    run(work)


def test_another_member_at_the_address_is_not_taken_for_the_one_we_want() -> None:
    async def work(at: House) -> None:
        with pytest.raises(PeerUntrusted):
            await at.call(greeting(), expect=NodeKey.ephemeral().node_id)

    run(work)


def test_a_door_that_claims_to_be_another_node_is_not_believed() -> None:
    async def work(at: House) -> None:
        with pytest.raises(ProtocolError, match="another node"):
            await at.call(greeting())

    run(work, host=greeting(claim=NodeId("b" * 52)))


def test_a_guest_whose_host_fails_is_not_left_waiting() -> None:
    async def work(at: House) -> None:
        guest = await dial(greeting(), [(HERE, at.port)], "control")
        with contextlib.suppress(ConnectionResetError):
            assert await asyncio.wait_for(guest.reader.read(), 3) == b""
        guest.abort()

    run(work, trouble=InternalError("nobody at home"))


def test_a_member_that_speaks_another_protocol_inside_tls_is_turned_away() -> None:
    async def work(at: House) -> None:
        caller = greeting()
        caller.credentials.client.set_alpn_protocols(["h2"])
        reader, writer = await asyncio.open_connection(
            HERE,
            at.port,
            ssl=caller.credentials.client,
            server_hostname=caller.credentials.server_name(),
        )
        writer.write(framing.pack(caller.hello("control", "")))
        with contextlib.suppress(ConnectionResetError):
            assert await asyncio.wait_for(reader.read(), 3) == b""
        writer.transport.abort()
        await at.settle()
        assert at.guests == []

    run(work)


def _certificate_only() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


@pytest.mark.parametrize("sni", [None, "x" * 52 + ".k.internal", "ringleader"])
def test_a_stranger_is_shown_no_certificate(sni: str | None) -> None:
    def knock(port: int) -> None:
        with socket.create_connection((HERE, port), 5) as raw:
            _certificate_only().wrap_socket(raw, server_hostname=sni)

    async def work(at: House) -> None:
        with pytest.raises((ssl.SSLError, ConnectionResetError)) as caught:
            await asyncio.to_thread(knock, at.port)
        assert "CERTIFICATE" not in str(caught.value).upper()
        await at.settle()
        assert at.guests == []

    run(work)


def test_a_knock_that_was_seen_before_opens_nothing() -> None:
    async def open_door(at: House, credentials: Credentials, knock: str) -> None:
        _, writer = await asyncio.open_connection(
            HERE, at.port, ssl=credentials.client, server_hostname=knock
        )
        writer.transport.abort()

    async def work(at: House) -> None:
        member = greeting().credentials
        once = member.server_name()
        await open_door(at, member, once)
        with pytest.raises((ssl.SSLError, ConnectionResetError)):
            await open_door(at, member, once)

    run(work)


@pytest.mark.parametrize(
    "rubbish",
    [b"GET / HTTP/1.1\r\n\r\n", os.urandom(4096), b"\x16\x03\x01\xff\xff" + bytes(70)],
    ids=["http", "noise", "half a hello"],
)
def test_rubbish_gets_nowhere(rubbish: bytes) -> None:
    async def work(at: House) -> None:
        reader, writer = await asyncio.open_connection(HERE, at.port)
        writer.write(rubbish)
        answer = await asyncio.wait_for(reader.read(4096), GREETING_S + 3)
        assert len(answer) <= 7, "an alert and nothing more"
        writer.close()
        await at.settle()
        assert at.guests == []

    run(work)


def test_a_member_that_sends_rubbish_inside_tls_is_turned_away() -> None:
    async def work(at: House) -> None:
        caller = greeting().credentials
        promise = (framing.MAX_HELLO_BYTES + 1).to_bytes(4, "little")
        noise = random.Random(7).randbytes(500)
        bodies = [framing.frame(b) for b in (b"\xc1", b"\x80", noise)]
        for rubbish in (*bodies, promise):
            reader, writer = await asyncio.open_connection(
                HERE, at.port, ssl=caller.client, server_hostname=caller.server_name()
            )
            writer.write(rubbish)
            answer = await asyncio.wait_for(framing.read_hello(reader, "it"), 3)
            word = "limit" if rubbish is promise else "hello"
            assert word in answer.refusal, "it is told why, before it has sent all"
            writer.transport.abort()
        await at.settle()
        assert at.guests == []
        assert at.door.num_rejected == 4

    run(work)


def test_a_hello_whose_text_is_no_text_is_refused() -> None:
    async def work(at: House) -> None:
        caller = greeting()
        hello = framing.pack(caller.hello("control", "")).replace(
            b"node", b"no\xffe", 1
        )
        credentials = caller.credentials
        reader, writer = await asyncio.open_connection(
            HERE,
            at.port,
            ssl=credentials.client,
            server_hostname=credentials.server_name(),
        )
        writer.write(hello)
        answer = await asyncio.wait_for(framing.read_hello(reader, "it"), 3)
        assert "hello" in answer.refusal
        writer.transport.abort()
        assert at.door.num_rejected == 1

    run(work)


def test_a_crowd_of_silent_strangers_does_not_keep_members_out() -> None:
    async def work(at: House) -> None:
        crowd = [
            await asyncio.open_connection(HERE, at.port)
            for _ in range(3 * doors.MAX_HALF_OPEN)
        ]
        for reader, _ in crowd[: -doors.MAX_PER_ADDRESS]:  # the oldest had to go
            assert await asyncio.wait_for(reader.read(1), 3) == b""
        started_s = time.monotonic()
        await at.call(greeting())
        assert time.monotonic() - started_s < 3
        assert len(at.door._half_open) <= doors.MAX_PER_ADDRESS
        for _, writer in crowd:
            writer.transport.abort()

    run(work)


@pytest.mark.parametrize("is_member", [False, True], ids=["stranger", "member"])
def test_dribbling_does_not_buy_more_time(
    monkeypatch: pytest.MonkeyPatch, is_member: bool
) -> None:
    """Neither in the handshake nor, for who has finished it, in the hello."""
    assert GREETING_S <= 5
    monkeypatch.setattr(doors, "GREETING_S", 1.0)
    words = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"  # of 512 bytes
    credentials = greeting().credentials
    tls: dict[str, Any] = {}
    if is_member:
        words = (500).to_bytes(4, "little")
        tls = {"ssl": credentials.client, "server_hostname": credentials.server_name()}

    async def work(at: House) -> None:
        started_s = time.monotonic()
        reader, writer = await asyncio.open_connection(HERE, at.port, **tls)
        for number in range(50):
            writer.write(words[number : number + 1] or b"\0")
            await asyncio.sleep(0.1)
            if reader.at_eof() or reader.exception():
                break
        assert 0.9 < time.monotonic() - started_s < 3
        writer.transport.abort()

    run(work)


def test_all_addresses_are_tried_and_the_one_that_works_wins() -> None:
    async def work(at: House) -> None:
        with socket.create_server((HERE, 0)) as silent, socket.socket() as closed:
            closed.bind((HERE, 0))
            ports = silent.getsockname()[1], closed.getsockname()[1], at.port
            started_s = time.monotonic()
            guest = await dial(greeting(), [(HERE, port) for port in ports], "control")
        assert guest.address == (HERE, at.port)
        assert time.monotonic() - started_s < 3, "nobody waits for the silent one"
        guest.close()

    run(work)


def test_being_refused_says_more_than_not_being_reached() -> None:
    async def work(at: House) -> None:
        with socket.socket() as closed:
            closed.bind((HERE, 0))
            where = [(HERE, closed.getsockname()[1]), (HERE, at.port)]
            with pytest.raises(PeerUntrusted, match="other secret"):
                await dial(greeting(THEIRS), where, "control")

    run(work)


def test_a_server_of_another_kind_is_told_from_an_agent() -> None:
    async def answer(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        await writer.drain()
        writer.close()

    async def main() -> None:
        server = await asyncio.start_server(answer, HERE, 0)
        async with server:
            where = server.sockets[0].getsockname()
            with pytest.raises(PeerUntrusted, match="does not speak TLS"):
                await dial(greeting(), [where], "control")

    asyncio.run(asyncio.wait_for(main(), 30))
