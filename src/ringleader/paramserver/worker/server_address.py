"""The address of the server: one or more join links, or a file that holds one."""

from __future__ import annotations

import ssl
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self
from urllib.parse import urlsplit

import httpx2

from ringleader.errors import ConfigError, RingleaderError
from ringleader.paramserver.protocol.join_link import JoinLink, parse
from ringleader.paramserver.worker.pinned_tls import pinning_context

_FILE_BYTES = 4096
_CONNECT_S = 15.0
_IO_S = 45.0
"""Longer than a long poll. Also the longest pause within a transfer."""
_HEADERS = {
    "Accept-Encoding": "identity",  # proxies that compress would change the body
    "User-Agent": "ringleader-work/1",
    "ngrok-skip-browser-warning": "true",  # else its free tunnels send a page first
    "bypass-tunnel-reminder": "true",
}


@dataclass(slots=True)
class ServerAddress:
    """The link in use, and alternatives for when a tunnel gets a new address."""

    link: JoinLink
    """The link in use."""
    _links: list[JoinLink]
    _file: Path | None
    _tried: int = 0
    _paired: dict[str, JoinLink] = field(default_factory=dict)

    @classmethod
    def from_links(cls, links: Sequence[str], file: Path | None = None) -> Self:
        """Parse ``links`` and read ``file``, whose link comes first.

        Raises ConfigError if one of them is not a link.
        """
        parsed = [_parse_link(link) for link in links]
        first = parsed[0] if file is None else _read_link(file)
        return cls(first, parsed, file)

    @property
    def has_alternatives(self) -> bool:
        """True if ``try_next`` may find another link."""
        return self._file is not None or len(self._links) > 1

    @property
    def is_plaintext(self) -> bool:
        """True if requests leave this machine without encryption."""
        parts = urlsplit(self.link.url)
        local = {"localhost", "127.0.0.1", "::1"}
        return parts.scheme == "http" and parts.hostname not in local

    def try_next(self) -> bool:
        """Read the file again and use the next link; return whether the link changed.

        A file that is being written, or holds no link, changes nothing.
        """
        try:
            links = self._all_links()
        except RingleaderError:
            return False
        self._tried += 1
        found = links[self._tried % len(links)]
        is_new, self.link = found != self.link, found
        return is_new

    def use_paired_link(self, link: JoinLink) -> None:
        """Use a link that pairing gave, now and wherever its bare address is listed."""
        self._paired[link.url] = self.link = link

    def open_client(self, context: ssl.SSLContext | None = None) -> httpx2.Client:
        """Open an HTTP client that trusts this server and no other."""
        timeout = httpx2.Timeout(_IO_S, connect=_CONNECT_S)
        fingerprint = self.link.fingerprint
        pinned = True if fingerprint is None else pinning_context(fingerprint)
        return httpx2.Client(
            verify=context or pinned, timeout=timeout, headers=_HEADERS
        )

    def _all_links(self) -> list[JoinLink]:
        first = [] if self._file is None else [_read_link(self._file)]
        return [
            self._paired.get(link.url, link) if link.is_bare else link
            for link in (*first, *self._links)
        ]


def _read_link(file: Path) -> JoinLink:
    try:
        with file.open("rb") as opened:
            text = opened.read(_FILE_BYTES).decode()
    except (OSError, UnicodeDecodeError) as exc:
        raise ConfigError(f"--server-file {file}: cannot be read: {exc}") from exc
    if not text.strip():
        raise ConfigError(f"--server-file {file}: it is empty; write the link into it")
    return _parse_link(text.split()[0])


def _parse_link(text: str) -> JoinLink:
    """Parse a link, and check that its host name can be looked up."""
    link = parse(text)
    try:
        httpx2.URL(link.url).raw_host.decode().encode("idna")
    except (httpx2.InvalidURL, UnicodeError) as exc:
        raise ConfigError(f"{link.url} is not the address of a server: {exc}") from exc
    return link
