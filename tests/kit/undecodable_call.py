"""A gRPC call whose path is no text, as anybody who can connect may send one."""

from __future__ import annotations

import socket

from ringleader.identity.certificates.pem import PemCredentials
from tests.kit.certificates import client_of
from tests.kit.malformed_requests import call

UNIMPLEMENTED = b"\x0bgrpc-status\x0212"
PATIENCE_S = 120.0


def send_undecodable_call(port: int, pem: PemCredentials | None = None) -> bytes:
    """Send it, as a member if ``pem`` is given; return what comes until a status."""
    frames = call("/grpc.health.v1.Health/Check", b"").replace(b"health", b"\xffealth")
    line = socket.create_connection(("127.0.0.1", port), PATIENCE_S)
    with line if pem is None else client_of(pem).wrap_socket(line) as line:
        line.sendall(frames)
        found = b""
        while UNIMPLEMENTED not in found and (more := line.recv(65536)):
            found += more
        return found
