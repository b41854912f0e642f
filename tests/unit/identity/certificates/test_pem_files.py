"""The user's certificates: what is accepted, and one sentence for what is not."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
)
from cryptography.x509.oid import ExtendedKeyUsageOID

from ringleader.errors import ConfigError
from ringleader.identity.certificates import pem_files, rotation
from ringleader.identity.certificates.pem import PemCredentials
from ringleader.identity.certificates.rotation import RotatingPem
from ringleader.identity.certificates.user_context import covers
from ringleader.settings.tls_files import TlsFiles
from tests.kit.certificates import DAY, TestCa, new_key, pem_of, write_files

CA, OTHER_CA = TestCa(), TestCa()
KEY, OTHER_KEY = new_key(), new_key()
CERT = CA.issue(KEY, "one.lab", "10.0.0.1")
SERVER = [ExtendedKeyUsageOID.SERVER_AUTH]
ED25519 = Ed25519PrivateKey.generate().private_bytes(
    Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()
)


def test_files_that_fit_are_read(tmp_path: Path) -> None:
    pem = pem_files.load(write_files(tmp_path, CA.pem, CERT, pem_of(KEY)))
    assert (pem.authority, pem.certificate) == (CA.pem, CERT)
    assert pem.host_name == ""
    assert repr(pem.key) == "<secret>"


@pytest.mark.parametrize(
    ("ca", "cert", "key", "text"),
    [
        (CA.pem, CERT, pem_of(OTHER_KEY), "key.pem: not the key of the certificate in"),
        (CA.pem, CERT, pem_of(KEY, "word"), "key.pem: the key is encrypted"),
        (CA.pem, CERT, b"", "key.pem: no private key in PEM"),
        (CA.pem, CERT, ED25519, "key.pem: gRPC accepts RSA and elliptic curve keys"),
        (CA.pem, CERT[:200], pem_of(KEY), "cert.pem: no certificate in PEM"),
        (b"nothing", CERT, pem_of(KEY), "ca.pem: no certificate in PEM"),
        (OTHER_CA.pem, CERT, pem_of(KEY), "cert.pem: not accepted by the authorities"),
        (
            CA.pem,
            CA.issue(KEY, "one.lab", until=-timedelta(hours=1)),
            pem_of(KEY),
            r"cert.pem: expired on .* UTC; the clock of this machine says",
        ),
        (
            CA.pem,
            CA.issue(KEY, "one.lab", since=-DAY / 2),
            pem_of(KEY),
            "cert.pem: not valid before",
        ),
        (CA.pem, CA.issue(KEY), pem_of(KEY), "cert.pem: names no host"),
        (
            CA.pem,
            CA.issue(KEY, "one.lab", uses=SERVER),
            pem_of(KEY),
            "cert.pem: its extended key usage lacks clientAuth",
        ),
    ],
)
def test_what_cannot_be_used_is_named(
    tmp_path: Path, ca: bytes, cert: bytes, key: bytes, text: str
) -> None:
    files = write_files(tmp_path, ca, cert, key)
    with pytest.raises(ConfigError, match=text) as caught:
        pem_files.load(files)
    assert "BEGIN PRIVATE KEY-----\nMI" not in str(caught.value)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    files = write_files(tmp_path, CA.pem, CERT, pem_of(KEY))
    lost = TlsFiles(files.ca, tmp_path / "lost.pem", files.key)
    with pytest.raises(ConfigError, match=r"lost.pem: cannot be read: No such file"):
        pem_files.load(lost)


@pytest.mark.parametrize(
    ("names", "host", "is_covered"),
    [
        (["one.lab"], "ONE.lab.", True),
        (["one.lab"], "two.lab", False),
        (["*.lab.example"], "one.lab.example", True),
        (["*.lab.example"], "a.one.lab.example", False),
        (["*.lab"], "one.lab", False),
        (["10.0.0.1"], "10.0.0.1", True),
        (["10.0.0.1"], "10.0.0.2", False),
        (["*.0.0.1"], "10.0.0.1", False),
        (["fe80::1"], "fe80:0::1%eth0", True),
        (["one.lab"], "10.0.0.1", False),
    ],
)
def test_names(names: list[str], host: str, is_covered: bool) -> None:
    assert covers(names, host) == is_covered


def test_changed_files_are_read_and_half_written_ones_are_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rotation, "CHECK_EVERY_S", 0.0)
    files = write_files(tmp_path, CA.pem, CERT, pem_of(KEY))
    said: list[str] = []
    rotating = RotatingPem.of(files, said.append)
    first = rotating.current()
    assert rotating.current() is first
    files.cert.write_bytes(CA.issue(OTHER_KEY, "one.lab"))
    for _ in range(3):
        assert rotating.current() is first
    assert len(said) == 1
    assert re.search(r"key.pem: not the key .*before stays in use", said[0])
    files.key.write_bytes(pem_of(OTHER_KEY))
    assert rotating.current().key.reveal() == pem_of(OTHER_KEY)
    assert "read the new certificate" in said[1]


def test_files_are_looked_at_once_a_second(tmp_path: Path) -> None:
    files = write_files(tmp_path, CA.pem, CERT, pem_of(KEY))
    rotating = RotatingPem.of(files)
    files.key.unlink()
    assert rotating.current() is rotating.current()


def test_new_files_are_tried_again_until_they_can_be_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody touches the files when a certificate becomes valid, or a disk has room."""
    monkeypatch.setattr(rotation, "CHECK_EVERY_S", 0.0)
    files = write_files(tmp_path, CA.pem, CERT, pem_of(KEY))
    old, new = pem_files.load(files), pem_files.load(files)
    errors = [ConfigError("not valid yet"), OSError("disk full")]
    found: Iterator[PemCredentials | Exception] = iter([old, *errors, new])

    def load() -> PemCredentials:
        each = next(found)
        if isinstance(each, Exception):
            raise each
        return each

    said: list[str] = []
    rotating = RotatingPem((files.cert, files.key), load, said.append)
    files.cert.touch()
    assert [rotating.current() for _ in range(4)] == [old, old, new, new]
    assert said == [
        "not valid yet; the certificate read before stays in use",
        f"{files.cert}: read the new certificate",
    ]


def test_a_certificate_that_openssl_refuses_is_no_servers(tmp_path: Path) -> None:
    weak = rsa.generate_private_key(public_exponent=65537, key_size=1024)
    files = write_files(tmp_path, CA.pem, CA.issue(weak, "one.lab"), pem_of(weak))
    with pytest.raises(ConfigError, match=r"cert.pem: cannot be used .*TOO_SMALL"):
        pem_files.load_server(files.cert, files.key)
