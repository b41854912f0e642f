"""Handshakes with the user's certificates over real sockets: every reason to refuse,
on both sides."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest
from cryptography.x509.oid import ExtendedKeyUsageOID

from ringleader.deadline import Deadline
from ringleader.errors import ConfigError, PeerError, PeerUntrusted
from ringleader.identity.certificates import rotation
from ringleader.identity.certificates.pem import PemCredentials
from ringleader.identity.certificates.rotation import RotatingPem
from ringleader.identity.cluster_secret import ClusterSecret, Secret
from ringleader.identity.credentials import Credentials
from ringleader.identity.node_key import NodeKey
from ringleader.identity.user_credentials import UserCredentials
from ringleader.transport.link import POLLIN, wait_ready
from ringleader.transport.secure_socket import SecureSocket
from ringleader.transport.tls_credentials import TlsCredentials
from tests.kit.certificates import DAY, TestCa, new_key, pem_of

HOST = "one.lab"
CA, OTHER_CA = TestCa("lab"), TestCa("lab")
SERVER_ONLY = (ExtendedKeyUsageOID.SERVER_AUTH,)
CLIENT_ONLY = (ExtendedKeyUsageOID.CLIENT_AUTH,)
HOUR = timedelta(hours=1)


def unchecked(cert: Callable[..., bytes], ca: bytes = CA.pem) -> UserCredentials:
    """Credentials that were valid when their process started, and may not be now."""
    key = new_key()
    pem = PemCredentials(ca, cert(key), Secret(pem_of(key)))
    return UserCredentials(RotatingPem((), lambda: pem))


def good(*hosts: str) -> UserCredentials:
    return unchecked(lambda key: CA.issue(key, *(hosts or (HOST,))))


class WithoutCertificate(UserCredentials):
    """A client that trusts the authority and has no certificate of its own."""

    @property
    def client(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.load_verify_locations(cadata=CA.pem.decode())
        context.set_alpn_protocols(["ringleader/1"])
        return context


def connect(
    client: TlsCredentials, server: TlsCredentials, host: str = HOST
) -> tuple[str, str]:
    """What the client and the server say after a handshake and one byte each way."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        dialled = socket.create_connection(listening.getsockname())
        accepted, _ = listening.accept()
    sides = {
        "client": SecureSocket(dialled, client, "the server", host=host),
        "server": SecureSocket(accepted, server, "the client", is_server=True),
    }
    said = dict.fromkeys(sides, "")
    waiting, deadline = dict(sides), Deadline.after(60)
    sent: set[str] = set()
    while waiting:
        assert not deadline.is_over(), said
        for name, sock in list(waiting.items()):
            try:
                if name not in sent:
                    sock.send(b"x")
                    sent.add(name)
                if not sock.recv(1):
                    said[name] = said[name] or "hung up"
                del waiting[name]
            except BlockingIOError:
                wait_ready([(sock.fileno(), POLLIN)], 0.01)
            except (PeerError, OSError) as exc:
                said[name] = str(exc)
                del waiting[name]
                sock.shutdown(socket.SHUT_WR)
    for sock in sides.values():
        sock.close()
    return said["client"], said["server"]


@pytest.mark.parametrize(
    "host", [HOST, "10.0.0.1", "127.0.0.1", "localhost", "fd00::1"]
)
def test_members_connect_by_every_name_of_the_server(host: str) -> None:
    mine = good(HOST, "10.0.0.1", "fd00::1")
    assert connect(mine, mine, host) == ("", "")


EXPIRED = unchecked(lambda key: CA.issue(key, HOST, until=-HOUR))
EARLY = unchecked(lambda key: CA.issue(key, HOST, since=-HOUR))
FOREIGN = unchecked(lambda key: OTHER_CA.issue(key, HOST), CA.pem)
NO_CLIENT = unchecked(lambda key: CA.issue(key, HOST, uses=SERVER_ONLY))
NO_SERVER = unchecked(lambda key: CA.issue(key, HOST, uses=CLIENT_ONLY))
BARE = WithoutCertificate(RotatingPem((), good().pem))
CLUSTER = Credentials.issue(ClusterSecret(root=Secret(bytes(32))), NodeKey.ephemeral())

REFUSED_CLIENTS: dict[str, tuple[TlsCredentials, str, str]] = {
    "expired": (EXPIRED, "our certificate: it has expired", "has expired"),
    "early": (EARLY, "or not valid yet", "not valid yet; is a clock wrong?"),
    "other CA": (FOREIGN, "another cluster", "not from this cluster"),
    "no use": (NO_CLIENT, "usage lacks clientAuth", "may not be used for this side"),
    "none": (BARE, "requires a certificate", "showed no certificate"),
    "cluster's": (CLUSTER, "", "another cluster"),
}


@pytest.mark.parametrize("case", REFUSED_CLIENTS)
def test_a_client_is_refused_with_the_reason_on_both_sides(case: str) -> None:
    client, at_client, at_server = REFUSED_CLIENTS[case]
    said = connect(client, good())
    assert at_client in said[0]
    assert at_server in said[1]


REFUSED_SERVERS: dict[str, tuple[TlsCredentials, str, str, str]] = {
    "expired": (EXPIRED, HOST, "has expired", "our certificate: it has expired"),
    "early": (EARLY, HOST, "not valid yet; is a clock wrong?", "or not valid yet"),
    "other CA": (FOREIGN, HOST, "not from this cluster", "in another cluster"),
    "no use": (NO_SERVER, HOST, "may not be used", "lacks clientAuth or serverAuth"),
    "name": (
        good(),
        "two.lab",
        "for another host",
        "for another host than was dialled",
    ),
    "address": (good(), "10.0.0.9", "for another address", "for another host than"),
    "cluster's": (CLUSTER, HOST, "we use the user's", "does not know our secret"),
}


@pytest.mark.parametrize("case", REFUSED_SERVERS)
def test_a_server_is_refused_with_the_reason_on_both_sides(case: str) -> None:
    server, host, at_client, at_server = REFUSED_SERVERS[case]
    said = connect(good(), server, host)
    assert at_client in said[0]
    assert at_server in said[1]


def test_the_accepting_side_verifies_the_host_of_the_rank() -> None:
    mine, theirs = good("one.lab"), good("two.lab", "10.0.0.2")
    der = ssl.PEM_cert_to_DER_cert(theirs.pem().certificate.decode())
    mine.check_hosts(der, ["10.0.0.2", "192.168.0.9"], 1)
    with pytest.raises(PeerUntrusted, match=r"for two.lab, 10.0.0.2, and not for one"):
        mine.check_hosts(der, ["one.lab"], 1)
    with pytest.raises(PeerUntrusted, match="and not for 127"):
        mine.check_hosts(der, ["127.0.0.1"], 1)  # here, only we have our certificate


def test_only_addresses_in_the_certificate_are_announced() -> None:
    mine = good("one.lab", "10.0.0.1")
    assert mine.announceable(["172.17.0.1", "10.0.0.1"]) == ("10.0.0.1",)
    assert mine.announceable(["127.0.0.1"]) == ("127.0.0.1",)
    with pytest.raises(
        ConfigError, match=r"at 10.0.0.2, and its certificate is for one"
    ):
        mine.announceable(["10.0.0.2"])


def test_the_certificate_is_the_node() -> None:
    mine, theirs = good(), good()
    der = ssl.PEM_cert_to_DER_cert(theirs.pem().certificate.decode())
    own = ssl.PEM_cert_to_DER_cert(mine.pem().certificate.decode())
    assert mine.verify(der) == theirs.node
    assert mine.verify(own, siblings=True) == mine.node
    with pytest.raises(PeerUntrusted, match="has the certificate of this machine"):
        mine.verify(own)
    with pytest.raises(PeerUntrusted, match="unexpected certificate"):
        mine.verify(der, expect=mine.node)
    assert mine.namespace == theirs.namespace, "the same authority"


def test_who_has_only_a_certificate_of_the_old_authority_is_out_after_rotation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Revoked by rotation, without a restart, and reason on both sides."""
    monkeypatch.setattr(rotation, "CHECK_EVERY_S", 0.0)
    key = new_key()
    files = CA.files(tmp_path, HOST)
    files.key.write_bytes(pem_of(key))
    files.cert.write_bytes(CA.issue(key, HOST))
    server, client = UserCredentials.load(files), good()
    assert connect(client, server) == ("", "")
    files.ca.write_bytes(OTHER_CA.pem + CA.pem)
    assert connect(client, server) == ("", ""), "both authorities, for a while"
    files.ca.write_bytes(OTHER_CA.pem)
    files.cert.write_bytes(OTHER_CA.issue(key, HOST, until=2 * DAY))
    newcomer = unchecked(lambda key: OTHER_CA.issue(key, HOST), OTHER_CA.pem + CA.pem)
    assert connect(newcomer, server) == ("", "")
    old = unchecked(lambda key: CA.issue(key, HOST), OTHER_CA.pem + CA.pem)
    said = connect(old, server)
    assert "does not accept our certificate: it is in another cluster" in said[0]
    assert "its certificate is not from this cluster" in said[1]
    assert capfd.readouterr().err.count("read the new certificate") >= 2


def test_a_new_key_waits_for_the_next_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(rotation, "CHECK_EVERY_S", 0.0)
    files = CA.files(tmp_path, HOST)
    server = UserCredentials.load(files)
    CA.files(tmp_path, HOST)
    assert connect(good(), server) == ("", "")
    assert "until it is started again" in capfd.readouterr().err
