"""Requests to a dashboard, as its page sends them or as somebody else would."""

from __future__ import annotations

import json
import socket
import ssl
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPResponse, HTTPSConnection
from typing import Any
from urllib.parse import urlsplit

PATIENCE_S = 60.0


@dataclass(slots=True)
class DashboardClient:
    """Talks to the dashboard of a printed link."""

    url: str
    key: str = ""

    @property
    def address(self) -> tuple[str, int]:
        """Host and port."""
        parts = urlsplit(self.url)
        assert parts.hostname is not None
        assert parts.port is not None
        return parts.hostname, parts.port

    @property
    def origin(self) -> str:
        """The origin of the page."""
        parts = urlsplit(self.url)
        return f"{parts.scheme}://{parts.netloc}"

    @property
    def token(self) -> str:
        """The token in the link."""
        return urlsplit(self.url).fragment.removeprefix("token=")

    def ask(
        self, method: str, path: str, body: object = None, **headers: str
    ) -> tuple[int, Any]:
        """Return the status and the content, which is JSON."""
        connection = self._connect()
        try:
            found = self._send(connection, method, path, body, headers)
            return found.status, json.loads(found.read())
        finally:
            connection.close()

    def _connect(self) -> HTTPConnection:
        if not self.url.startswith("https:"):
            return HTTPConnection(*self.address, timeout=PATIENCE_S)
        context = ssl.create_default_context()
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE  # as a phone whose user goes on
        return HTTPSConnection(*self.address, timeout=PATIENCE_S, context=context)

    def _send(
        self,
        connection: HTTPConnection,
        method: str,
        path: str,
        body: object,
        headers: dict[str, str],
    ) -> HTTPResponse:
        sent = {"Origin": self.origin, "Authorization": f"Bearer {self.key}"}
        data = None
        if body is not None:
            sent["Content-Type"] = "application/json"
            data = json.dumps(body).encode()
        sent |= {name.replace("_", "-"): value for name, value in headers.items()}
        connection.request(method, path, data, sent)
        return connection.getresponse()

    def open(self) -> None:
        """Exchange the token of the link for a session key."""
        status, found = self.ask("POST", "/session", {"token": self.token})
        assert status == 200, found
        self.key = found["key"]

    def raw(self, data: bytes) -> bytes:
        """Send bytes and return everything that comes until the end."""
        with socket.create_connection(self.address, PATIENCE_S) as sock:
            sock.sendall(data)
            found = b""
            while more := sock.recv(65536):
                found += more
            return found
