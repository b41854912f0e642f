"""Mutual TLS with authenticated server names, in memory: accepted and refused peers."""

from __future__ import annotations

import hashlib
import pickle
import ssl
import stat
import subprocess
import sys
import traceback
from dataclasses import dataclass
from pathlib import Path

import msgspec
import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding

from ringleader.errors import (
    ConfigError,
    InternalError,
    PeerError,
    PeerUntrusted,
    ProtocolError,
)
from ringleader.identity.certificates import tls_context, tls_errors
from ringleader.identity.certificates.authority import Authority, LeafCertificate
from ringleader.identity.cluster_secret import ClusterSecret
from ringleader.identity.credentials import Credentials
from ringleader.identity.node_key import NodeKey
from ringleader.identity.secret_value import Secret

HOME = ClusterSecret(root=Secret(b"home" * 8), name="home")
OTHER = ClusterSecret(root=Secret(b"othr" * 8), name="other")
SERVER = Credentials.issue(HOME, NodeKey.ephemeral())
CLIENT = Credentials.issue(HOME, NodeKey.ephemeral())
STRANGER = Credentials.issue(OTHER, NodeKey.ephemeral())

ALERT_112 = bytes([21, 3, 3, 0, 2, 2, 112])
"""A fatal unrecognized_name, and nothing else."""


@dataclass
class Side:
    """One end of a connection whose wire is memory."""

    object: ssl.SSLObject
    incoming: ssl.MemoryBIO
    outgoing: ssl.MemoryBIO
    sent: bytes = b""
    is_open: bool = False
    error: ssl.SSLError | None = None

    def step(self) -> None:
        """Go as far as what has arrived allows."""
        if self.error is not None:
            return
        try:
            if not self.is_open:
                self.object.do_handshake()
                self.is_open = True
            self.object.read(1)
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLError as error:
            self.error = error

    def deliver(self, other: Side) -> bool:
        moved = self.outgoing.read()
        self.sent += moved
        other.incoming.write(moved)
        return bool(moved)

    def certificate(self) -> bytes | None:
        """What the other end has shown; None also when the handshake failed."""
        return self.object.getpeercert(True) if self.is_open else None


def side(context: ssl.SSLContext, *, serves: bool, name: str | None = None) -> Side:
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    wrapped = context.wrap_bio(
        incoming, outgoing, server_side=serves, server_hostname=name
    )
    return Side(wrapped, incoming, outgoing)


def connect(
    client_context: ssl.SSLContext,
    name: str | None,
    server_context: ssl.SSLContext = SERVER.server,
) -> tuple[Side, Side]:
    """The client and the server after everything that can happen has happened."""
    client = side(client_context, serves=False, name=name)
    server = side(server_context, serves=True)
    is_moving = True
    while is_moving:
        client.step()
        is_moving = client.deliver(server)
        server.step()
        is_moving = server.deliver(client) or is_moving
    return client, server


def bare_client() -> ssl.SSLContext:
    """A client with no certificate that believes everything."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


def explained(error: ssl.SSLError | None) -> PeerError:
    assert error is not None
    return tls_errors.explain("10.0.0.7:4711", error)


# -- members -----------------------------------------------------------------------


def test_two_members_meet_and_each_knows_the_other() -> None:
    client, server = connect(CLIENT.client, CLIENT.server_name())
    assert client.is_open
    assert server.is_open
    assert SERVER.verify(server.certificate()) == CLIENT.node
    assert CLIENT.verify(client.certificate(), expect=SERVER.node) == SERVER.node
    for end in (client, server):
        CLIENT.check_alpn(end.object)
        assert end.object.version() == "TLSv1.3"
        assert end.error is None


def test_a_label_opens_the_server_that_is_announced_by_it() -> None:
    server = Credentials.issue(HOME, NodeKey.ephemeral())
    server.set_labels("label1")
    client, _ = connect(CLIENT.client, CLIENT.server_name("label1"), server.server)
    assert client.is_open
    client, _ = connect(CLIENT.client, CLIENT.server_name("label2"), server.server)
    assert not client.is_open


def test_nothing_is_ever_resumed() -> None:
    client, _ = connect(CLIENT.client, CLIENT.server_name())
    assert client.object.session is None or not client.object.session.has_ticket
    assert not client.object.session_reused


def test_processes_of_one_node_meet_where_that_is_allowed() -> None:
    client, server = connect(SERVER.client, SERVER.server_name())
    with pytest.raises(PeerUntrusted, match="cloned identity"):
        SERVER.verify(server.certificate())
    assert SERVER.verify(server.certificate(), siblings=True) == SERVER.node
    assert SERVER.verify(client.certificate(), expect=SERVER.node) == SERVER.node


def test_a_member_that_was_not_expected_is_named() -> None:
    client, _ = connect(CLIENT.client, CLIENT.server_name())
    someone = NodeKey.ephemeral().node_id
    with pytest.raises(PeerUntrusted, match=r"10\.0\.0\.7:1: unexpected node"):
        CLIENT.verify(client.certificate(), expect=someone, peer="10.0.0.7:1")


# -- strangers -------------------------------------------------------------------


@pytest.mark.parametrize(
    "name",
    [
        None,
        "router.local",
        "a" * 52 + ".k.internal",
        "x" * 63 + ".k.internal",
        STRANGER.server_name(),
        CLIENT.server_name("another label"),
    ],
    ids=["no name", "a name", "no MAC", "long", "other secret", "other label"],
)
def test_a_stranger_gets_seven_bytes_and_no_certificate(name: str | None) -> None:
    client, server = connect(bare_client(), name)
    assert server.sent == ALERT_112
    assert client.certificate() is None
    assert not server.is_open
    assert isinstance(explained(server.error), PeerUntrusted)


def test_a_recorded_server_name_is_not_heard_again() -> None:
    name = CLIENT.server_name()
    client, _ = connect(CLIENT.client, name)
    assert client.is_open
    for context in (CLIENT.client, bare_client()):
        client, server = connect(context, name)
        assert server.sent == ALERT_112
        assert not client.is_open


def test_a_machine_of_another_cluster_is_asked_for_its_secret() -> None:
    client, server = connect(STRANGER.client, STRANGER.server_name())
    assert server.sent == ALERT_112
    for error in (client.error, server.error):
        assert "other secret?" in str(explained(error))
        assert isinstance(explained(error), PeerUntrusted)


def test_a_false_server_is_refused_before_it_hears_who_we_are() -> None:
    """It knows no secret, so it answers any server name with its own certificate."""
    leaf = Authority.of(OTHER).issue(NodeKey.ephemeral())
    false = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    false.verify_mode = ssl.CERT_OPTIONAL
    false.load_verify_locations(cadata=Authority.of(HOME).certificate)
    tls_context._load_leaf(false, leaf)
    client, server = connect(CLIENT.client, CLIENT.server_name(), false)
    assert not client.is_open
    assert server.certificate() is None
    assert "not from this cluster (other secret?)" in str(explained(client.error))


# -- strangers with a valid server name (leaked, or intercepted before its use) ----


def test_without_a_certificate_nobody_comes_in() -> None:
    client, server = connect(bare_client(), CLIENT.server_name())
    assert not server.is_open
    assert client.is_open, "in TLS 1.3 the client hears of it at its first read"
    text = str(explained(client.error))
    assert "requires a certificate, and this process showed none" in text
    assert server.error is not None


@pytest.mark.parametrize("claims_our_authority", [False, True])
def test_a_foreign_certificate_does_not_come_in(claims_our_authority: bool) -> None:
    """Also with an authority that has the name of ours, and ours sent along."""
    foreign = Authority.of(OTHER)
    if claims_our_authority:
        key = ec.generate_private_key(ec.SECP256R1())
        foreign = Authority(key, Authority.of(HOME).certificate)
    leaf = foreign.issue(NodeKey.ephemeral())
    context = bare_client()
    tls_context._load_leaf(context, leaf)
    client, server = connect(context, CLIENT.server_name())
    assert not server.is_open
    assert isinstance(server.error, ssl.SSLCertVerificationError)
    assert "not from this cluster" in str(explained(server.error))
    assert isinstance(explained(client.error), PeerUntrusted)


def test_a_certificate_without_its_key_is_of_no_use() -> None:
    authority = Authority.of(HOME)
    seen, own = (authority.issue(NodeKey.ephemeral()) for _ in range(2))
    with pytest.raises(ssl.SSLError, match="KEY_VALUES_MISMATCH"):
        tls_context.client_context(
            authority.verifier, LeafCertificate(seen.certificate, own.key)
        )


def test_a_member_that_claims_another_node_passes_tls_and_not_the_check() -> None:
    liar = NodeKey.ephemeral()
    victim = NodeKey.ephemeral()
    liar.public, liar.node_id = victim.public, victim.node_id
    authority = Authority.of(HOME)
    context = tls_context.client_context(authority.verifier, authority.issue(liar))
    _, server = connect(context, CLIENT.server_name())
    assert server.is_open, "it has the secret, so the chain is good"
    with pytest.raises(PeerUntrusted, match="claims to be"):
        SERVER.verify(server.certificate())


def test_certificates_are_judged_strictly() -> None:
    """This one names no issuer key; Python accepts it by default before 3.13."""
    authority = Authority.of(HOME)
    leaf = authority.issue(NodeKey.ephemeral())
    good = x509.load_der_x509_certificate(leaf.certificate)
    sloppy = x509.CertificateBuilder(
        issuer_name=good.issuer,
        subject_name=good.subject,
        public_key=good.public_key(),
        serial_number=good.serial_number,
        not_valid_before=good.not_valid_before_utc,
        not_valid_after=good.not_valid_after_utc,
        extensions=[
            each
            for each in good.extensions
            if not isinstance(each.value, x509.AuthorityKeyIdentifier)
        ],
    ).sign(authority._key, SHA256())
    der = sloppy.public_bytes(Encoding.DER)
    context = tls_context.client_context(
        authority.verifier, LeafCertificate(der, leaf.key)
    )
    _, server = connect(context, CLIENT.server_name())
    assert not server.is_open
    assert "Missing Authority Key Identifier" in str(explained(server.error))


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2])
def test_an_older_tls_is_refused(version: ssl.TLSVersion) -> None:
    context = bare_client()
    context.maximum_version = version
    client, server = connect(context, CLIENT.server_name())
    assert not client.is_open
    assert server.sent[-1] == 70, "protocol_version"
    assert isinstance(explained(client.error), PeerUntrusted)


@pytest.mark.parametrize("spoken", [[], ["h2"], ["ringleader/2", "http/1.1"]])
def test_another_protocol_inside_is_named(spoken: list[str]) -> None:
    """Python completes the handshake all the same."""
    authority = Authority.of(HOME)
    context = tls_context.client_context(
        authority.verifier, authority.issue(NodeKey.ephemeral())
    )
    context.set_alpn_protocols(spoken)
    client, server = connect(context, CLIENT.server_name())
    assert server.is_open
    for end in (client, server):
        with pytest.raises(ProtocolError, match="another version of Ringleader"):
            SERVER.check_alpn(end.object)


@pytest.mark.parametrize(
    "said",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        b"\0" * 600,
        b"\xff" * 600,
        bytes(range(256)) * 8,
        b"\x16\x03\x01\xff\xff" + b"\x01" * 600,
        b"RINGLDR\0" * 24,
    ],
)
def test_whoever_speaks_no_tls_learns_nothing(said: bytes) -> None:
    server = side(SERVER.server, serves=True)
    server.incoming.write(said)
    server.incoming.write_eof()
    server.step()
    answer = server.outgoing.read()
    assert len(answer) <= 7
    assert not server.is_open
    assert isinstance(explained(server.error), PeerError)


def test_a_context_never_writes_its_keys_down(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("SSLKEYLOGFILE", str(tmp_path / "keys"))
    made = Credentials.issue(HOME, NodeKey.ephemeral())
    assert not made.client.keylog_filename
    assert not made.server.keylog_filename


# -- handing over to workers -------------------------------------------------------

WORKER = """
import sys
from pathlib import Path
from ringleader.identity.credentials import Credentials

print(Credentials.from_file(Path(sys.argv[1])).node)
"""


def test_workers_get_their_credentials_by_a_file(tmp_path: Path) -> None:
    path = tmp_path / "credentials"
    CLIENT.to_file(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    argv = [sys.executable, "-c", WORKER, str(path)]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout.strip() == CLIENT.node
    worker = Credentials.from_file(path)
    assert worker.namespace == CLIENT.namespace == HOME.namespace
    client, server = connect(worker.client, worker.server_name())
    assert SERVER.verify(server.certificate()) == CLIENT.node
    client, server = connect(CLIENT.client, CLIENT.server_name(), worker.server)
    assert CLIENT.verify(client.certificate(), siblings=True) == CLIENT.node


def test_the_file_does_not_hold_the_secret_of_the_cluster(tmp_path: Path) -> None:
    CLIENT.to_file(tmp_path / "credentials")
    content = (tmp_path / "credentials").read_bytes()
    assert HOME.root.reveal() not in content
    assert HOME.mdns_key().reveal() not in content
    assert HOME.authority_scalar().to_bytes(32, "big") not in content


def fields(path: Path) -> list[bytes | int | str]:
    CLIENT.to_file(path)
    return list(msgspec.msgpack.decode(path.read_bytes()))


def rewrite(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    path.chmod(0o600)


@pytest.mark.parametrize("at", range(6))
@pytest.mark.parametrize("value", [b"", b"x", b"\x30" * 40, 2, None, "text"])
def test_changed_credentials_are_refused(
    tmp_path: Path, at: int, value: bytes | int | str | None
) -> None:
    path = tmp_path / "credentials"
    rewrite(path, msgspec.msgpack.encode([*fields(path)[:at], value]))
    with pytest.raises(ConfigError, match=f"{path}: not credentials of a node"):
        Credentials.from_file(path)


def test_mixed_up_credentials_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "credentials"
    mine = fields(path)
    SERVER.to_file(path)
    theirs = list(msgspec.msgpack.decode(path.read_bytes()))
    STRANGER.to_file(path)
    foreign = list(msgspec.msgpack.decode(path.read_bytes()))
    for mixed in (
        [*mine[:3], theirs[3], *mine[4:]],
        [*mine[:1], foreign[1], *mine[2:]],
        [*mine, 5],
        mine[:-2],
    ):
        blank = msgspec.json.encode([*mixed[:6], ""])
        mixed[6:7] = [hashlib.sha256(blank).hexdigest()]
        rewrite(path, msgspec.msgpack.encode(mixed))
        with pytest.raises(ConfigError, match="not credentials of a node"):
            Credentials.from_file(path)


def test_credentials_with_a_flipped_bit_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "credentials"
    CLIENT.to_file(path)
    whole = path.read_bytes()
    for place in range(0, len(whole), 7):
        damaged = bytearray(whole)
        damaged[place] ^= 1 << place % 8
        rewrite(path, bytes(damaged))
        with pytest.raises(ConfigError, match="not credentials of a node"):
            Credentials.from_file(path)


@pytest.mark.parametrize("content", [b"", b"\xc1", b"\x91" * 3000, bytes(9000)])
def test_garbage_is_no_credentials(tmp_path: Path, content: bytes) -> None:
    rewrite(tmp_path / "credentials", content)
    with pytest.raises(ConfigError):
        Credentials.from_file(tmp_path / "credentials")


def test_missing_and_open_files_are_named(tmp_path: Path) -> None:
    path = tmp_path / "credentials"
    with pytest.raises(ConfigError, match="no credentials there"):
        Credentials.from_file(path)
    CLIENT.to_file(path)
    path.chmod(0o644)
    with pytest.raises(ConfigError, match=f"chmod 600 {path}"):
        Credentials.from_file(path)


def test_no_error_shows_a_key(tmp_path: Path) -> None:
    path = tmp_path / "credentials"
    key, sni_key = fields(path)[3:5]
    content = path.read_bytes()
    for changed in (content[:-1], content[:200] + content[201:], content + b"\0"):
        rewrite(path, changed)
        with pytest.raises(ConfigError) as caught:
            Credentials.from_file(path)
        trace = traceback.TracebackException.from_exception(
            caught.value, capture_locals=True
        )
        shown = "".join(str(frame.locals) for frame in trace.stack[1:])
        for secret in (key, sni_key):
            assert isinstance(secret, bytes)
            assert repr(secret[-20:])[2:-1] not in shown
        assert "<secret>" in shown


def test_credentials_show_their_node_and_do_not_travel_by_pickle() -> None:
    assert repr(CLIENT) == f"<credentials of node {CLIENT.node[:4]}-{CLIENT.node[4:8]}>"
    with pytest.raises(InternalError, match="to_file"):
        pickle.dumps(CLIENT)


def test_nothing_readable_is_left_in_the_temporary_directory(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The ssl module wants a file; when loading dies, the key in it is sealed."""
    seen: list[bytes] = []

    def die(context: ssl.SSLContext, path: Path, password: object) -> None:
        assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
        seen.append(path.read_bytes())

    monkeypatch.setattr(ssl.SSLContext, "load_cert_chain", die)
    Credentials.issue(HOME, NodeKey.ephemeral())
    assert all(b"BEGIN ENCRYPTED PRIVATE KEY" in content for content in seen)
    assert len(seen) == 2
