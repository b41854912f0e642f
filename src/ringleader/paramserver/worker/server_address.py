"""Where the server is: links, or a file that holds one and is read again and again."""

from __future__ import annotations

import hmac
import ssl
from collections.abc import Callable, Sequence
from pathlib import Path
from urllib.parse import urlsplit

import httpx2

from ringleader.errors import ConfigError, RingleaderError
from ringleader.identity import server_key
from ringleader.paramserver.protocol.join_link import JoinLink, parse

NOT_THE_KEY = "its key is not the one in the link"
_FILE_BYTES = 4096
_CONNECT_S = 15.0
_IO_S = 45.0
"""Longer than a long-poll lasts. Also how long a line may stand still in a transfer."""
_HEADERS = {
    "Accept-Encoding": "identity",  # proxies that compress would change the body
    "User-Agent": "ringleader-work/1",
    "ngrok-skip-browser-warning": "true",  # else its free tunnels send a page first
    "bypass-tunnel-reminder": "true",
}


class ServerAddress:
    """Where one server can be found: tunnels break and get new addresses."""

    def __init__(self, links: Sequence[str], file: Path | None = None) -> None:
        self._links = [_parsed(link) for link in links]
        self._file = file
        self._tried = 0
        self._trusted: dict[str, JoinLink] = {}
        self.link = self._all()[0]

    @property
    def has_alternatives(self) -> bool:
        """Whether it is worth looking again when the link is no good."""
        return self._file is not None or len(self._links) > 1

    @property
    def is_plaintext(self) -> bool:
        """Whether requests leave this machine as they are."""
        parts = urlsplit(self.link.url)
        local = {"localhost", "127.0.0.1", "::1"}
        return parts.scheme == "http" and parts.hostname not in local

    def try_next(self) -> bool:
        """Turn to the next link, the file's first; whether it is another than before.

        A file that is being rewritten, or holds no link, changes nothing.
        """
        try:
            links = self._all()
        except RingleaderError:
            return False
        self._tried += 1
        found = links[self._tried % len(links)]
        is_new, self.link = found != self.link, found
        return is_new

    def use_paired_link(self, link: JoinLink) -> None:
        """A PIN vouched for this link; from now on it stands for its bare address."""
        self._trusted[link.url] = self.link = link

    def _all(self) -> list[JoinLink]:
        first = [] if self._file is None else [_read(self._file)]
        return [
            self._trusted.get(link.url, link) if link.is_bare else link
            for link in (*first, *self._links)
        ]

    def open_client(self, context: ssl.SSLContext | None = None) -> httpx2.Client:
        """A new HTTP client that trusts this server and no other."""
        timeout = httpx2.Timeout(_IO_S, connect=_CONNECT_S)
        pin = self.link.fingerprint
        verify = context or (True if pin is None else pinning_context(pin))
        return httpx2.Client(verify=verify, timeout=timeout, headers=_HEADERS)


def pinning_context(fingerprint: bytes) -> ssl.SSLContext:
    """A context that accepts the one key of the link, whatever its certificate says."""
    return _context_with_check(lambda found: hmac.compare_digest(found, fingerprint))


def recording_context(into: list[bytes]) -> ssl.SSLContext:
    """A context that accepts no key, and notes the fingerprint of the one it saw."""

    def note(found: bytes) -> bool:
        into.append(found)
        return False

    return _context_with_check(note)


def _context_with_check(is_right: Callable[[bytes], bool]) -> ssl.SSLContext:
    """A context that judges the fingerprint of a key; empty if the key is not ours.

    That is part of the handshake: not a byte of a request reaches another server.
    """

    def check(der: bytes | None) -> None:
        try:
            found = server_key.fingerprint_of(der or b"")
        except ValueError:
            found = b""
        if not is_right(found):
            raise ssl.SSLCertVerificationError(NOT_THE_KEY)

    class Socket(ssl.SSLSocket):
        def do_handshake(self, block: bool = False) -> None:
            super().do_handshake(block)
            check(self.getpeercert(True))

    class Object(ssl.SSLObject):  # TLS inside a proxy's TLS
        def do_handshake(self) -> None:
            super().do_handshake()
            check(self.getpeercert(True))

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False  # before verify_mode
    context.verify_mode = ssl.CERT_NONE  # the judge replaces the chain
    context.sslsocket_class, context.sslobject_class = Socket, Object
    return context


def _read(file: Path) -> JoinLink:
    try:
        with file.open("rb") as opened:
            text = opened.read(_FILE_BYTES).decode()
    except (OSError, UnicodeDecodeError) as exc:
        raise ConfigError(f"--server-file {file}: cannot be read: {exc}") from exc
    if not text.strip():
        raise ConfigError(f"--server-file {file}: it is empty; write the link into it")
    return _parsed(text.split()[0])


def _parsed(text: str) -> JoinLink:
    """A link whose address can be looked up; else that fails only when it is used."""
    link = parse(text)
    try:
        httpx2.URL(link.url).raw_host.decode().encode("idna")
    except (httpx2.InvalidURL, UnicodeError) as exc:
        raise ConfigError(f"{link.url} is no address of a server: {exc}") from exc
    return link
