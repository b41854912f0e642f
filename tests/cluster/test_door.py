"""The door of an agent: who gets in, who does not, and that a crowd does no harm."""

from __future__ import annotations

import asyncio
import os
import secrets
import socket
import ssl
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import pytest

from ringleader.errors import PeerError, PeerRefused, PeerUntrusted
from ringleader.identity.credentials import Credentials
from ringleader.identity.node_key import NodeKey
from ringleader.identity.redacted import Secret
from ringleader.identity.secret import ClusterSecret
from ringleader.ids import Incarnation, NodeId
from ringleader.node import door as doors
from ringleader.node import frames
from ringleader.node.dialling import dial
from ringleader.node.door import Door
from ringleader.node.frames import Hello
from ringleader.node.guest import GREETING_S, Greeting, Guest

HERE = "127.0.0.1"
OURS = ClusterSecret(root=Secret(os.urandom(32)))
THEIRS = ClusterSecret(root=Secret(os.urandom(32)))


def greeting(
    cluster: ClusterSecret = OURS,
    *,
    claim: NodeId | None = None,
    protocol: int = frames.PROTOCOL,
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
async def house() -> AsyncIterator[House]:
    sock = socket.create_server((HERE, 0))
    sock.setblocking(False)
    guests: list[Guest] = []

    async def on_guest(guest: Guest) -> None:
        guests.append(guest)

    host = greeting()
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


def run(work: Callable[[House], Awaitable[None]]) -> None:
    async def main() -> None:
        async with house() as made:
            await work(made)

    asyncio.run(asyncio.wait_for(main(), 60))


def test_a_member_comes_in_and_both_know_who_the_other_is() -> None:
    async def work(at: House) -> None:
        caller = greeting()
        guest = await at.call(caller, expect=at.host.credentials.node)
        await at.settle()
        assert guest.node == at.host.credentials.node
        assert [g.node for g in at.guests] == [caller.credentials.node]
        assert at.door.num_rejected == 0

    run(work)


@pytest.mark.parametrize(
    ("caller", "kind", "word"),
    [
        (greeting(THEIRS), PeerUntrusted, "other secret"),
        (greeting(claim=NodeId("b" * 52)), PeerRefused, "another node"),
        (greeting(protocol=frames.PROTOCOL + 1), PeerRefused, "upgrade"),
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
        once = member.knock()
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
        for body in (b"\xc1", b"\x80", os.urandom(500), bytes(3000)):
            reader, writer = await asyncio.open_connection(
                HERE, at.port, ssl=caller.client, server_hostname=caller.knock()
            )
            writer.write(frames.frame(body))
            try:
                answer = await frames.read_hello(reader, "the door")
            except PeerError:
                continue
            else:
                assert answer.refusal, "an answer must be a refusal"
            finally:
                writer.transport.abort()
        await at.settle()
        assert at.guests == []

    run(work)


def test_a_crowd_of_silent_strangers_does_not_keep_members_out() -> None:
    async def work(at: House) -> None:
        crowd = []
        for _ in range(3 * doors.MAX_HALF_OPEN):
            _, writer = await asyncio.open_connection(HERE, at.port)
            crowd.append(writer)
        started_s = time.monotonic()
        await at.call(greeting())
        assert time.monotonic() - started_s < 3
        assert len(at.door._half_open) <= doors.MAX_PER_ADDRESS
        for writer in crowd:
            writer.transport.abort()

    run(work)


def test_dribbling_does_not_buy_more_time() -> None:
    async def work(at: House) -> None:
        _, writer = await asyncio.open_connection(HERE, at.port)
        hello = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"  # of 512 bytes
        started_s = time.monotonic()
        for number in range(200):
            writer.write(hello[number : number + 1] or b"\0")
            await asyncio.sleep(0.1)
            if number > 5 and not at.door._half_open:
                break
        took_s = time.monotonic() - started_s
        assert GREETING_S - 1 < took_s < GREETING_S + 3
        writer.transport.abort()

    run(work)


def test_all_addresses_are_tried_and_the_one_that_works_wins() -> None:
    async def work(at: House) -> None:
        with socket.socket() as closed:
            closed.bind((HERE, 0))
            nobody = closed.getsockname()[1]
            silent = ("192.0.2.1", 9)  # nobody has it: the connection hangs
            where = [silent, (HERE, nobody), (HERE, at.port)]
            started_s = time.monotonic()
            guest = await dial(greeting(), where, "control")
        assert guest.address == (HERE, at.port)
        assert time.monotonic() - started_s < 3
        guest.close()

    run(work)
