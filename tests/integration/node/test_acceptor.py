"""The acceptor lets members in, refuses strangers, and survives a crowd of them."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
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
from ringleader.identity.node_credentials import NodeCredentials
from ringleader.identity.node_key import NodeKey
from ringleader.identity.secret_value import Secret
from ringleader.ids import Incarnation, NodeId
from ringleader.node.peering import acceptor as acceptor_module
from ringleader.node.peering import connect as connect_module
from ringleader.node.peering.acceptor import Acceptor
from ringleader.node.peering.connect import connect
from ringleader.node.peering.peer_connection import (
    HANDSHAKE_S,
    HandshakeContext,
    PeerConnection,
)
from ringleader.node.protocol import framing
from ringleader.node.protocol.hello import (
    MAX_HELLO_BYTES,
    PROTOCOL,
    AgentHello,
    read_hello,
)

HERE = "127.0.0.1"
SOON_S = 60.0
"""Limit of every wait: a busy machine needs seconds."""
OURS = ClusterSecret(root=Secret(os.urandom(32)))
THEIRS = ClusterSecret(root=Secret(os.urandom(32)))


def handshake(
    cluster: ClusterSecret = OURS,
    *,
    claim: NodeId | None = None,
    protocol: int = PROTOCOL,
) -> HandshakeContext:
    """Make a node that may claim another id or speak another protocol."""
    credentials = Credentials.issue(cluster, NodeKey.ephemeral())

    def hello(purpose: str, subject: str) -> AgentHello:
        return AgentHello(
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

    return HandshakeContext(credentials, hello)


@dataclass
class Host:
    """A running acceptor and the connections it accepted."""

    acceptor: Acceptor
    port: int
    host: HandshakeContext
    connections: list[PeerConnection] = field(default_factory=list)

    async def call(
        self, caller: HandshakeContext, expect: NodeId | None = None
    ) -> PeerConnection:
        connection = await connect(
            caller, [(HERE, self.port)], "control", expect=expect
        )
        connection.close()
        return connection

    async def settle(self) -> None:
        """Wait until no handshake is pending, and every connection was handed over."""
        async with asyncio.timeout(SOON_S):
            while self.acceptor._half_open or self.acceptor._handlers:  # noqa: ASYNC110
                await asyncio.sleep(0.02)


@asynccontextmanager
async def serving(
    host: HandshakeContext, trouble: Exception | None
) -> AsyncIterator[Host]:
    sock = socket.create_server((HERE, 0))
    sock.setblocking(False)
    connections: list[PeerConnection] = []

    async def on_connection(connection: PeerConnection) -> None:
        connections.append(connection)
        if trouble is not None:
            raise trouble

    acceptor = Acceptor(host, sock, on_connection)
    task = asyncio.create_task(acceptor.serve())
    try:
        yield Host(acceptor, sock.getsockname()[1], host, connections)
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        for connection in connections:
            connection.abort()
        await asyncio.sleep(0.05)
        sock.close()


def run(
    work: Callable[[Host], Awaitable[None]],
    host: HandshakeContext | None = None,
    trouble: Exception | None = None,
) -> None:
    """Run ``work`` with an acceptor whose handler raises ``trouble``."""

    async def main() -> None:
        async with serving(host or handshake(), trouble) as made:
            await work(made)

    asyncio.run(asyncio.wait_for(main(), 5 * SOON_S))


def test_a_member_is_accepted_and_both_sides_know_each_other() -> None:
    async def work(at: Host) -> None:
        caller = handshake()
        connection = await at.call(caller, expect=at.host.credentials.node)
        await at.settle()
        assert connection.node == at.host.credentials.node
        assert [g.node for g in at.connections] == [caller.credentials.node]
        assert at.connections[0].address == (HERE, 4000), "where it can be dialled"
        assert at.acceptor.num_rejected == 0

    run(work)


@pytest.mark.parametrize(
    ("caller", "kind", "word"),
    [
        (handshake(THEIRS), PeerUntrusted, "other secret"),
        (handshake(claim=NodeId("b" * 52)), PeerRefused, "another node"),
        (handshake(protocol=PROTOCOL + 1), PeerRefused, "upgrade"),
    ],
    ids=["other cluster", "claims another id", "other version"],
)
def test_a_peer_that_is_not_a_member_is_refused_with_the_reason(
    caller: HandshakeContext, kind: type[PeerError], word: str
) -> None:
    async def work(at: Host) -> None:
        with pytest.raises(kind, match=word):
            await at.call(caller)
        await at.settle()
        assert at.connections == []
        assert at.acceptor.num_rejected == 1

    run(work)


def test_another_member_at_the_address_is_not_mistaken_for_the_expected_one() -> None:
    async def work(at: Host) -> None:
        with pytest.raises(PeerUntrusted):
            await at.call(handshake(), expect=NodeKey.ephemeral().node_id)

    run(work)


def test_an_acceptor_that_claims_another_id_is_refused() -> None:
    async def work(at: Host) -> None:
        with pytest.raises(ProtocolError, match="another node"):
            await at.call(handshake())

    run(work, host=handshake(claim=NodeId("b" * 52)))


def test_a_peer_whose_handler_fails_is_disconnected() -> None:
    async def work(at: Host) -> None:
        connection = await connect(handshake(), [(HERE, at.port)], "control")
        with contextlib.suppress(ConnectionResetError):
            assert await asyncio.wait_for(connection.reader.read(), SOON_S) == b""
        connection.abort()

    run(work, trouble=InternalError("handler failed"))


def test_a_member_with_another_alpn_protocol_is_refused() -> None:
    async def work(at: Host) -> None:
        caller = handshake()
        caller.credentials.client.set_alpn_protocols(["h2"])
        reader, writer = await asyncio.open_connection(
            HERE,
            at.port,
            ssl=caller.credentials.client,
            server_hostname=caller.credentials.server_name(),
        )
        writer.write(framing.pack(caller.hello("control", "")))
        with contextlib.suppress(ConnectionResetError):
            assert await asyncio.wait_for(reader.read(), SOON_S) == b""
        writer.transport.abort()
        await at.settle()
        assert at.connections == []

    run(work)


def _certificate_only() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


@pytest.mark.parametrize("sni", [None, "x" * 52 + ".k.internal", "ringleader"])
def test_a_stranger_is_shown_no_certificate(sni: str | None) -> None:
    def server_name(port: int) -> None:
        with socket.create_connection((HERE, port), SOON_S) as raw:
            _certificate_only().wrap_socket(raw, server_hostname=sni)

    async def work(at: Host) -> None:
        with pytest.raises((ssl.SSLError, ConnectionResetError)) as caught:
            await asyncio.to_thread(server_name, at.port)
        assert "CERTIFICATE" not in str(caught.value).upper()
        await at.settle()
        assert at.connections == []

    run(work)


def test_a_server_name_works_only_once() -> None:
    async def open_tls(
        at: Host, credentials: NodeCredentials, server_name: str
    ) -> None:
        _, writer = await asyncio.open_connection(
            HERE, at.port, ssl=credentials.client, server_hostname=server_name
        )
        writer.transport.abort()

    async def work(at: Host) -> None:
        member = handshake().credentials
        once = member.server_name()
        await open_tls(at, member, once)
        with pytest.raises((ssl.SSLError, ConnectionResetError)):
            await open_tls(at, member, once)

    run(work)


@pytest.mark.parametrize(
    "garbage",
    [b"GET / HTTP/1.1\r\n\r\n", os.urandom(4096), b"\x16\x03\x01\xff\xff" + bytes(70)],
    ids=["http", "noise", "half a hello"],
)
def test_garbage_is_answered_with_an_alert_at_most(garbage: bytes) -> None:
    async def work(at: Host) -> None:
        reader, writer = await asyncio.open_connection(HERE, at.port)
        writer.write(garbage)
        answer = await asyncio.wait_for(reader.read(4096), HANDSHAKE_S + SOON_S)
        assert len(answer) <= 7, "an alert and nothing more"
        writer.close()
        await at.settle()
        assert at.connections == []

    run(work)


def test_a_member_that_sends_garbage_inside_tls_is_refused() -> None:
    async def work(at: Host) -> None:
        caller = handshake().credentials
        promise = (MAX_HELLO_BYTES + 1).to_bytes(4, "little")
        noise = random.Random(7).randbytes(500)
        bodies = [framing.frame(b) for b in (b"\xc1", b"\x80", noise)]
        for garbage in (*bodies, promise):
            reader, writer = await asyncio.open_connection(
                HERE, at.port, ssl=caller.client, server_hostname=caller.server_name()
            )
            writer.write(garbage)
            answer = await asyncio.wait_for(read_hello(reader, "it"), SOON_S)
            word = "limit" if garbage is promise else "hello"
            assert word in answer.refusal, "it is told why, before it has sent all"
            writer.transport.abort()
        await at.settle()
        assert at.connections == []
        assert at.acceptor.num_rejected == 4

    run(work)


def test_a_hello_with_invalid_utf8_is_refused() -> None:
    async def work(at: Host) -> None:
        caller = handshake()
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
        answer = await asyncio.wait_for(read_hello(reader, "it"), SOON_S)
        assert "hello" in answer.refusal
        writer.transport.abort()
        await at.settle()
        assert at.acceptor.num_rejected == 1

    run(work)


def test_many_silent_strangers_do_not_keep_members_out() -> None:
    async def work(at: Host) -> None:
        crowd = [
            await asyncio.open_connection(HERE, at.port)
            for _ in range(3 * acceptor_module.MAX_HALF_OPEN)
        ]
        for reader, _ in crowd[
            : -acceptor_module.MAX_PER_ADDRESS
        ]:  # the oldest had to go
            assert await asyncio.wait_for(reader.read(1), SOON_S) == b""
        await at.call(handshake())
        assert len(at.acceptor._half_open) <= acceptor_module.MAX_PER_ADDRESS
        for _, writer in crowd:
            writer.transport.abort()

    run(work)


@pytest.mark.parametrize("is_member", [False, True], ids=["stranger", "member"])
def test_sending_byte_by_byte_does_not_extend_the_handshake(
    monkeypatch: pytest.MonkeyPatch, is_member: bool
) -> None:
    """Neither in the TLS handshake nor, after it, in the hello."""
    assert HANDSHAKE_S <= 5
    monkeypatch.setattr(acceptor_module, "HANDSHAKE_S", 3.0)
    words = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"  # of 512 bytes
    credentials = handshake().credentials
    tls: dict[str, Any] = {}
    if is_member:
        words = (500).to_bytes(4, "little")
        tls = {"ssl": credentials.client, "server_hostname": credentials.server_name()}

    async def work(at: Host) -> None:
        started_s = time.monotonic()
        reader, writer = await asyncio.open_connection(HERE, at.port, **tls)
        async with asyncio.timeout(SOON_S):
            for number in itertools.count():
                writer.write(words[number : number + 1] or b"\0")
                await asyncio.sleep(0.1)
                if reader.at_eof() or reader.exception():
                    break
        assert time.monotonic() - started_s > 2.7
        writer.transport.abort()

    run(work)


def test_all_addresses_are_tried_and_the_one_that_works_wins(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(connect_module, "HANDSHAKE_S", 2 * SOON_S)

    async def work(at: Host) -> None:
        with socket.create_server((HERE, 0)) as silent, socket.socket() as closed:
            closed.bind((HERE, 0))
            ports = silent.getsockname()[1], closed.getsockname()[1], at.port
            connection = await asyncio.wait_for(  # a silent address must not delay it
                connect(handshake(), [(HERE, port) for port in ports], "control"),
                SOON_S,
            )
        assert connection.address == (HERE, at.port)
        connection.close()

    run(work)


def test_a_refusal_is_reported_rather_than_an_unreachable_address() -> None:
    async def work(at: Host) -> None:
        with socket.socket() as closed:
            closed.bind((HERE, 0))
            where = [(HERE, closed.getsockname()[1]), (HERE, at.port)]
            with pytest.raises(PeerUntrusted, match="other secret"):
                await connect(handshake(THEIRS), where, "control")

    run(work)


def test_a_server_that_is_no_agent_is_reported_as_such() -> None:
    async def answer(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        await writer.drain()
        writer.close()

    async def main() -> None:
        server = await asyncio.start_server(answer, HERE, 0)
        async with server:
            where = server.sockets[0].getsockname()
            with pytest.raises(PeerUntrusted, match="does not speak TLS"):
                await connect(handshake(), [where], "control")

    asyncio.run(asyncio.wait_for(main(), SOON_S))
