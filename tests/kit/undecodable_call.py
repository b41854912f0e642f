"""A gRPC call whose path is no text, as anybody who can connect may send one."""

from __future__ import annotations

import socket
import ssl
import tempfile
from pathlib import Path

from ringleader.identity.certificates.pem import PemCredentials
from tests.kit.malformed_requests import call

UNIMPLEMENTED = b"\x0bgrpc-status\x0212"
PATIENCE_S = 120.0


def send_undecodable_call(port: int, pem: PemCredentials | None = None) -> bytes:
    """Send it, as a member if ``pem`` is given; return what comes until a status."""
    frames = call("/grpc.health.v1.Health/Check", b"").replace(b"health", b"\xffealth")
    line = socket.create_connection(("127.0.0.1", port), PATIENCE_S)
    with line if pem is None else _as_member(line, pem) as line:
        line.sendall(frames)
        found = b""
        while UNIMPLEMENTED not in found and (more := line.recv(65536)):
            found += more
        return found


def _as_member(line: socket.socket, pem: PemCredentials) -> ssl.SSLSocket:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    with tempfile.TemporaryDirectory() as folder:
        certificate, key = Path(folder, "certificate"), Path(folder, "key")
        certificate.write_bytes(pem.certificate)
        key.write_bytes(pem.key.reveal())
        context.load_cert_chain(certificate, key)
    return context.wrap_socket(line)
