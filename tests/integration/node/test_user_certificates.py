"""Agents with the user's certificates: who is refused, and what both sides say."""

from __future__ import annotations

import asyncio
import socket
from datetime import timedelta
from pathlib import Path

import pytest

from ringleader.errors import ConfigError, PeerError
from ringleader.identity.certificates.pem import PemCredentials
from ringleader.identity.certificates.rotation import RotatingPem
from ringleader.identity.secret_value import Secret
from ringleader.identity.user_credentials import UserCredentials
from ringleader.ids import Incarnation
from ringleader.node.agent.agent_identity import AgentIdentity
from ringleader.node.peering.acceptor import Acceptor
from ringleader.node.peering.connect import connect
from ringleader.node.peering.peer_connection import HandshakeContext, PeerConnection
from ringleader.node.protocol.hello import PROTOCOL, AgentHello
from tests.kit.certificates import DAY, TestCa, new_key, pem_of

CA = TestCa()


def handshake(
    *, ca: TestCa = CA, until: timedelta = DAY, name: str = "one.lab"
) -> HandshakeContext:
    key = new_key()
    cert = ca.issue(key, name, until=until)
    pem = PemCredentials(CA.pem, cert, Secret(pem_of(key)))
    credentials = UserCredentials(RotatingPem((), lambda: pem))

    def hello(purpose: str, subject: str) -> AgentHello:
        return AgentHello(
            protocol=PROTOCOL,
            version="",
            purpose=purpose,
            node=credentials.node,
            incarnation=Incarnation("0" * 16),
            started_ms=0,
            name="",
            port=4000,
            clock_s=0.0,
            subject=subject,
        )

    return HandshakeContext(credentials, hello)


async def dial(
    server: HandshakeContext, client: HandshakeContext
) -> tuple[list[PeerConnection], str, str]:
    """Return who came in, what the client was told, and what the server noted."""
    accepted: list[PeerConnection] = []

    async def keep(connection: PeerConnection) -> None:
        accepted.append(connection)

    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.setblocking(False)
        acceptor = Acceptor(server, listening, keep)
        serving = asyncio.create_task(acceptor.serve())
        told = ""
        try:
            address = ("127.0.0.1", listening.getsockname()[1])
            made = await connect(client, [address], "control")
            made.abort()
        except PeerError as exc:
            told = str(exc)
        for _ in range(6000):
            if accepted or acceptor.refusals:
                break
            await asyncio.sleep(0.01)
        serving.cancel()
        for connection in accepted:
            connection.abort()
    return accepted, told, "".join(acceptor.refusals.values())


def test_agents_of_one_authority_connect_and_know_each_other() -> None:
    client = handshake()
    accepted, told, noted = asyncio.run(dial(handshake(), client))
    assert [each.node for each in accepted] == [client.credentials.node]
    assert (told, noted) == ("", "")


@pytest.mark.parametrize(
    ("client", "told", "noted"),
    [
        (
            handshake(until=-DAY / 2),
            "does not accept our certificate: it has expired",
            "its certificate has expired",
        ),
        (
            handshake(ca=TestCa()),
            "does not accept our certificate",
            "its certificate is not from this cluster",
        ),
        (
            handshake(name="two.lab"),
            "its certificate is for another host",
            "hung up in the handshake; does it accept our certificate?",
        ),
    ],
    ids=["expired", "other authority", "server of another name"],
)
def test_refused_agents_and_those_that_refuse_say_why(
    client: HandshakeContext, told: str, noted: str
) -> None:
    accepted, was_told, was_noted = asyncio.run(dial(handshake(), client))
    assert accepted == []
    assert told in was_told
    assert noted in was_noted


def test_two_agents_of_one_machine_need_two_certificates(tmp_path: Path) -> None:
    files = CA.files(tmp_path / "tls", "one.lab")
    home = str(tmp_path / "home")
    with AgentIdentity.claim(home, files) as first:
        assert first.worker_credentials == ""
        assert first.cluster.title == "CN=lab"
        with pytest.raises(
            ConfigError, match="another agent of this machine uses this"
        ):
            AgentIdentity.claim(home, files)
        other = CA.files(tmp_path / "other", "one.lab")
        with AgentIdentity.claim(home, other) as second:
            assert second.node != first.node
    with AgentIdentity.claim(home, files) as again:
        assert again.node == first.node
