"""``SharedPage``: the dashboard for phones of the household, by HTTPS and a code.

Browsers do not know the authority of a cluster, so the page has a certificate of its
own, whose fingerprint the command prints. The page closes by itself when the code and
all sessions that it opened are over.
"""

from __future__ import annotations

import asyncio
import hashlib
import ssl
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from ringleader.dashboard.access import Access
from ringleader.dashboard.server import DashboardServer, Sources
from ringleader.identity import server_key
from ringleader.transport.listening_socket import listen

_FOLDER = "dashboard"


class SharedPage:
    """Listens on all interfaces while somebody may look."""

    def __init__(
        self,
        access: Access,
        sources: Sources,
        home: Path,
        addresses: Callable[[], Sequence[str]],
    ) -> None:
        """``addresses`` returns those of this machine on the chosen networks."""
        self._access = access
        self._home = home
        self._addresses = addresses
        self._server = DashboardServer(access, sources, self._origins)
        self._port = 0
        self._closing: asyncio.Task[None] | None = None
        self.fingerprint = ""

    @property
    def is_open(self) -> bool:
        """Whether it listens."""
        return self._port != 0

    @property
    def urls(self) -> list[str]:
        """Addresses to type into a phone, the best first."""
        return [f"https://{_host(each)}:{self._port}/" for each in self._addresses()]

    async def open(self, port: int) -> None:
        """Listen, unless it does; raises ``ConfigError`` if the port is taken."""
        if self.is_open:
            return
        context, self.fingerprint = await asyncio.to_thread(_make_context, self._home)
        sock = listen("", port)
        self._port = sock.getsockname()[1]
        await self._server.listen(sock, context)
        self._closing = asyncio.create_task(self._close_when_over())

    async def close(self) -> None:
        """Stop listening and end all connections."""
        if self._closing is not None:
            self._closing.cancel()
        self._port = 0
        await self._server.close()

    def _origins(self) -> frozenset[str]:
        return frozenset(url.removesuffix("/") for url in self.urls)

    async def _close_when_over(self) -> None:
        while True:
            left_s = self._access.visitors_until_s() - time.monotonic()
            if left_s <= 0:
                break
            await asyncio.sleep(left_s + 1.0)  # a phone may open a session meanwhile
        self._port = 0
        await self._server.close()


def _host(address: str) -> str:
    return f"[{address}]" if ":" in address else address


def _make_context(home: Path) -> tuple[ssl.SSLContext, str]:
    """Return the TLS context of the page, and its certificate's fingerprint."""
    folder = home / _FOLDER
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    context, der = server_key.load_or_make(folder).context_and_certificate()
    return context, hashlib.sha256(der).hexdigest().upper()
