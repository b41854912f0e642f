"""``ringleader serve`` with the user's certificate, which changes while it serves."""

from __future__ import annotations

import ssl
import urllib.request
from pathlib import Path

import pytest

from ringleader.errors import ConfigError
from ringleader.identity.certificates import rotation
from ringleader.identity.server_certificate import ServerCertificate
from tests.kit.certificates import TestCa
from tests.kit.param_server import server

HOST = "127.0.0.1"


def fetch(url: str, ca: TestCa) -> int:
    """Return the status of a request whose certificate ``ca`` must have signed."""
    context = ssl.create_default_context(cadata=ca.pem.decode())
    with urllib.request.urlopen(f"{url}/v1/status", context=context) as answer:
        return int(answer.status)


def test_a_new_certificate_counts_from_the_next_connection(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(rotation, "CHECK_EVERY_S", 0.0)
    old, new = TestCa("old"), TestCa("new")
    files = old.files(tmp_path / "tls", HOST)
    own = ServerCertificate.load(files.cert, files.key)
    assert own is not None
    keys: list[bytes] = []
    own.on_key = keys.append
    first = own.fingerprint
    with server(tmp_path / "run", tls=True, certificate=own) as made:
        assert fetch(made.url, old) == 200
        files.cert.write_bytes(b"half of it")
        assert fetch(made.url, old) == 200
        assert "the certificate read before stays in use" in capfd.readouterr().err
        new.files(tmp_path / "tls", HOST)
        assert fetch(made.url, new) == 200
        with pytest.raises(OSError, match="CERTIFICATE_VERIFY_FAILED"):
            fetch(made.url, old)
    assert keys == [own.fingerprint]
    assert keys != [first]


def test_certificate_and_key_belong_together(tmp_path: Path) -> None:
    files = TestCa().files(tmp_path, HOST)
    assert ServerCertificate.load(None, None) is None
    with pytest.raises(ConfigError, match="--tls-key is missing"):
        ServerCertificate.load(files.cert, None)
    with pytest.raises(ConfigError, match="--tls-cert is missing"):
        ServerCertificate.load(None, files.key)
    other = TestCa().files(tmp_path / "other", HOST)
    with pytest.raises(ConfigError, match=r"key.pem: not the key of the certificate"):
        ServerCertificate.load(files.cert, other.key)
